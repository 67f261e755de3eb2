//! Runs the examples.

#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../checksums.rs"]
mod checksums;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../embedded.rs"]
mod embedded;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../fan_out.rs"]
mod fan_out;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../kinds.rs"]
mod kinds;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../prices.rs"]
mod prices;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../torture.rs"]
mod torture;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../two_steps.rs"]
mod two_steps;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../web.rs"]
mod web;

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn checksums_match_and_missing_files_are_reported() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (abc, empty) = (folder.path().join("abc"), folder.path().join("empty"));
    std::fs::write(&abc, "abc")?;
    std::fs::write(&empty, "")?;
    let files = [abc, folder.path().join("gone"), empty];
    let digests = checksums::checksums(&files).await?;
    let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(digests[0].as_deref(), Ok(of_abc));
    assert!(digests[1].as_ref().is_err_and(|why| why.contains("No such file")), "{digests:?}");
    assert_eq!(digests[2].as_deref(), Ok(of_nothing));
    Ok(())
}

#[tokio::test]
async fn the_embedded_system_completes_its_jobs() -> anyhow::Result<()> {
    assert_eq!(embedded::squares().await?, 100);
    Ok(())
}

#[tokio::test]
async fn three_kinds_of_jobs_run_in_one_worker() -> anyhow::Result<()> {
    assert_eq!(kinds::run().await?, "acme owes 12.50");
    Ok(())
}

#[tokio::test]
async fn an_order_resumes_from_its_last_checkpoint() -> anyhow::Result<()> {
    assert_eq!(two_steps::order().await?, "4");
    Ok(())
}

#[tokio::test]
async fn undeliverable_mails_become_dead_letters() -> anyhow::Result<()> {
    let readers =
        ["a@fast.example", "b@slow.example", "c@down.example", "d@down.example", "nobody@x"];
    let sent = fan_out::newsletter(readers.map(str::to_owned).to_vec()).await?;
    let dead = vec![("Busy".to_owned(), 2), ("NoSuchMailbox".to_owned(), 1)];
    assert_eq!(sent, fan_out::Sent { sent: 2, dead });
    Ok(())
}

#[test]
fn the_torture_finds_the_double_charge() {
    let [careless, careful] = torture::charges();
    assert!(careless.unwrap_err().to_string().starts_with("charged 2 times: seed "));
    assert_eq!(careful.unwrap().cases, 1_000);
}

#[tokio::test]
async fn prices_are_followed_and_quoted() -> anyhow::Result<()> {
    let melon = "no melon is sold here".to_owned();
    assert_eq!(prices::shopping().await?, (vec![45, 40], 90, melon));
    Ok(())
}

#[tokio::test]
async fn the_web_server_enqueues_jobs_and_returns_results() -> anyhow::Result<()> {
    let state = web::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    let enqueue = async |to: &str| {
        let answer = http(state.address, "POST /welcomes", &format!("{{\"to\":\"{to}\"}}")).await?;
        assert_eq!(answer.status, 202, "{answer:?}");
        http(state.address, &format!("GET /welcomes/{}", answer.body), "").await
    };
    let answer = enqueue("ada@example.com").await?;
    assert_eq!((answer.status, answer.body.as_str()), (200, "\"a welcome to ada@example.com\""));
    let answer = enqueue("nobody").await?;
    assert_eq!((answer.status, answer.body.as_str()), (422, "not an address"));
    assert_eq!(http(state.address, "GET /welcomes/mine", "").await?.status, 404);
    let no_such_job = "GET /welcomes/00000000-0000-7000-8000-000000000000";
    assert_eq!(http(state.address, no_such_job, "").await?.status, 404);
    let no_mail = http(state.address, "POST /welcomes", "{}").await?;
    assert_eq!(no_mail.status, 422, "{no_mail:?}");
    state.stop().await
}

#[derive(Debug)]
struct Answered {
    status: u16,
    body: String,
}

/// Sends one request on its own connection.
async fn http(to: SocketAddr, request: &str, body: &str) -> anyhow::Result<Answered> {
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut link = tokio::net::TcpStream::connect(to).await?;
    link.write_all((head + body).as_bytes()).await?;
    let mut answer = String::new();
    link.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap_or_default().parse()?;
    Ok(Answered { status, body: body.to_owned() })
}
