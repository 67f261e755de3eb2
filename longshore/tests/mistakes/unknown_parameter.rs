use longshore::JobKind;

#[derive(serde::Serialize, serde::Deserialize, JobKind)]
#[job(path = "/tenants/{tenannt}/mail")]
//~^ 'Mail' has no field 'tenannt' for {tenannt} in '/tenants/{tenannt}/mail'; its fields: tenant, to
struct Mail {
    tenant: String,
    to: String,
}

fn main() {}
