//! The policy beside a naive evaluator of the same rules, which shares no code with it.

use longshore_protocol::{Glob, Path, PublisherId};
use proptest::prelude::*;

use super::{Binding, Decision, Effect, LinksLimit, Policy, PolicyFault, Quota, Rights};
use crate::action::Action;
use crate::identity::Identity;

/// A rule as its text has it.
#[derive(Clone, Debug)]
struct Draft {
    allows: bool,
    who: Vec<&'static str>,
    actions: Vec<&'static str>,
    paths: Vec<&'static str>,
}

const WHO: [&str; 9] = [
    "*",
    "anonymous",
    "dns:a.test",
    "dns:*.test",
    "cn:a.test",
    "token:a",
    "group:ops",
    "group:none",
    "uri:spiffe://*/w",
];
const ACTIONS: [&str; 4] = ["enqueue", "work", "act", "*"];
const PATHS: [&str; 9] =
    ["/**", "/a/**", "/a/*", "/a/b", "/*/b", "/u/${user}/**", "/u/x-${user}", "/**/b", "/{a,u}/b"];
const OPS: [&str; 2] = ["dns:b.test", "token:a"];
const CLIENTS: [&str; 8] =
    ["", "dns:a.test", "dns:b.test", "cn:a.test", "token:a", "token:*", "uri:spiffe://x/w", "cn:?"];
const TRIED: [&str; 9] =
    ["/a", "/a/b", "/a/c", "/b", "/u/a", "/u/a/b", "/u/x-a", "/u/a.test/z", "/u/b.test"];

fn draft() -> impl Strategy<Value = Draft> {
    let some = |all: &'static [&'static str]| proptest::sample::subsequence(all, 1..3);
    (any::<bool>(), some(&WHO), some(&ACTIONS), some(&PATHS))
        .prop_map(|(allows, who, actions, paths)| Draft { allows, who, actions, paths })
}

fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    proptest::collection::vec(draft(), 0..5)
}

/// The file of the rules. Its rules begin at lines 5, 9, 13 and so on.
fn text(drafts: &[Draft]) -> String {
    let head = format!("[groups]\nops = {OPS:?}\nnone = []\n\n");
    drafts.iter().fold(head, |text, draft| {
        let Draft { allows, who, actions, paths } = draft;
        let effect = if *allows { "allow" } else { "deny" };
        format!("{text}[[{effect}]]\nwho = {who:?}\ndo = {actions:?}\npaths = {paths:?}\n")
    })
}

fn like(pattern: &[u8], text: &[u8], star: fn(u8) -> bool) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len())
            .any(|n| text[..n].iter().all(|&b| star(b)) && like(rest, &text[n..], star)),
        [first, rest @ ..] => text.first() == Some(first) && like(rest, &text[1..], star),
    }
}

fn names(who: &str, client: &str) -> bool {
    match who {
        "*" => !client.is_empty(),
        "anonymous" => client.is_empty(),
        "group:ops" => OPS.contains(&client),
        "group:none" => false,
        // A kind has no star, so it has to be equal.
        pattern => like(pattern.as_bytes(), client.as_bytes(), |_| true),
    }
}

/// Whether a path of a rule matches. `**` is written at an end or a beginning only.
fn matches(pattern: &str, allows: bool, client: &str, path: &str) -> bool {
    let name = client.split_once(':').map_or("", |(_, name)| name);
    let usable = !name.is_empty() && !name.contains(['/', '*', '?']);
    let pattern = match (pattern.contains("${user}"), usable, allows) {
        (true, true, _) => pattern.replace("${user}", name),
        (true, false, true) => return false,
        (true, false, false) => pattern.replace("${user}", "*"),
        (false, ..) => pattern.to_owned(),
    };
    let segment = |byte| byte != b'/';
    if pattern == "/{a,u}/b" {
        return path == "/a/b" || path == "/u/b";
    }
    if let Some(base) = pattern.strip_suffix("/**") {
        let above = |end: usize| like(base.as_bytes(), &path.as_bytes()[..end], segment);
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        return ends.into_iter().any(above);
    }
    if let Some(tail) = pattern.strip_prefix("/**") {
        return path.ends_with(tail);
    }
    like(pattern.as_bytes(), path.as_bytes(), segment)
}

fn naive(drafts: &[Draft], client: &str, action: Action, path: &str) -> (bool, Vec<usize>) {
    let applies = |draft: &Draft| {
        draft.who.iter().any(|who| names(who, client))
            && draft.actions.iter().any(|text| *text == "*" || *text == action.name())
            && draft.paths.iter().any(|text| matches(text, draft.allows, client, path))
    };
    let lines = |allows: bool| -> Vec<usize> {
        let at = |(n, draft): (usize, &Draft)| {
            (draft.allows == allows && applies(draft)).then_some(5 + 4 * n)
        };
        drafts.iter().enumerate().filter_map(at).collect()
    };
    let (allows, denies) = (lines(true), lines(false));
    if denies.is_empty() { (!allows.is_empty(), allows) } else { (false, denies) }
}

fn identity(client: &str) -> Option<Identity> {
    (!client.is_empty()).then(|| client.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_policy_decides_as_the_naive_evaluator_does(before in drafts(), after in drafts()) {
        let policy = Policy::parse(&text(&before)).unwrap();
        let later = Policy::parse(&text(&after)).unwrap();
        for client in CLIENTS {
            let who = identity(client);
            let rights = policy.rights(who.as_ref());
            let keeps = later.rights(who.as_ref()).keep(&rights);
            let mut any = false;
            for (action, path) in Action::ALL.iter().flat_map(|a| TRIED.map(|p| (*a, p))) {
                let case = format!("{client:?} {action} {path} under\n{}", text(&before));
                let (allowed, lines) = naive(&before, client, action, path);
                let path_text = path;
                let path = Path::new(path).unwrap();
                let (line, decided) = match policy.decide(who.as_ref(), action, &path) {
                    Decision::Allowed(rule) => (Some(rule.line), true),
                    Decision::Denied(rule) => (Some(rule.line), false),
                    Decision::NoRule => (None, false),
                };
                prop_assert_eq!(decided, allowed, "{}", case);
                prop_assert_eq!(line, lines.first().copied(), "{}", case);
                prop_assert_eq!(rights.may(action, &path), allowed, "{}", case);
                any |= allowed;
                if keeps && allowed {
                    let (still, _) = naive(&after, client, action, path_text);
                    prop_assert!(still, "{} then\n{}", case, text(&after));
                }
            }
            prop_assert!(!(any && rights.is_nothing()));
        }
    }
}

#[test]
fn adding_a_rule_keeps_rights_and_taking_one_does_not() {
    let rule =
        |who, path| format!("[[allow]]\nwho = [{who:?}]\ndo = [\"work\"]\npaths = [{path:?}]\n");
    let (a, b) = (rule("cn:a", "/a/**"), rule("cn:*", "/b/**"));
    let deny = rule("cn:a", "/a/x").replace("allow", "deny");
    let who = identity("cn:a");
    let rights = |text: &str| Policy::parse(text).unwrap().rights(who.as_ref());
    let (only_a, both) = (rights(&a), rights(&(a.clone() + &b)));
    assert!(both.keep(&only_a) && !only_a.keep(&both));
    assert!(!rights(&(a.clone() + &deny)).keep(&only_a));
    assert!(only_a.keep(&rights(&(a.clone() + &deny))));
    assert!(Rights::everything().keep(&both) && !both.keep(&Rights::everything()));
    assert!(rights(&rule("*", "/**")).keep(&both));
    let anonymous = Policy::parse(&a).unwrap().rights(None);
    assert!(anonymous.is_nothing() && !both.is_nothing());
}

/// Some choose their names themselves, at an identity provider.
#[test]
fn no_name_is_a_right_to_the_servers() {
    let rights = |path: &str, name: &str| {
        let text = format!("[[allow]]\nwho = [\"*\"]\ndo = [\"*\"]\npaths = [{path:?}]\n");
        Policy::parse(&text).unwrap().rights(identity(name).as_ref())
    };
    for (path, name) in [
        ("/${user}/**", "cn:sys"),
        ("/s${user}", "cn:ys"),
        ("/{jobs,${user}}/**", "cn:sys"),
        ("/{shared/mail,${user}}/**", "cn:sys"),
        ("{/shared/mail,/${user}}/**", "cn:sys"),
        ("/**/${user}/**", "cn:sys"),
        ("/**/${user}", "cn:sys"),
    ] {
        let rights = rights(path, name);
        let on_servers = Action::ALL.iter().any(|action| rights.may_at_server(*action));
        assert!(!on_servers, "{path} for {name}");
    }
    assert!(rights("/${user}/**", "cn:system").may(Action::Work, &Path::new("/system/a").unwrap()));
    assert!(rights("/sys/**", "cn:sys").may_at_server(Action::Operate));
    let of_servers = Path::new("/sys/metrics").unwrap();
    assert!(!rights("/${user}/*", "cn:sys").may(Action::Read, &of_servers));
    // A path that the policy gives to each name is its own.
    let own = rights("/sys/metrics/${user}", "cn:sys");
    assert!(own.may(Action::Read, &Path::new("/sys/metrics/sys").unwrap()));
}

#[test]
fn a_publishers_id_belongs_to_the_identity_that_the_policy_names() {
    let (one, two) = (PublisherId([1; 16]), PublisherId([2; 16]));
    let bound = |who: &str| format!("[publishers]\n\"{one}\" = {who}\n");
    let policy = |who: &str| Policy::parse(&bound(who)).unwrap();
    let (pa, pb) = (identity("dns:pa.test"), identity("dns:pb.test"));
    let first = policy("[\"dns:pa.test\"]");
    assert_eq!(first.binding(pa.as_ref(), one), Binding::Own);
    assert_eq!(first.binding(pb.as_ref(), one), Binding::Others);
    assert_eq!(first.binding(None, one), Binding::Others);
    assert_eq!(first.binding(pa.as_ref(), two), Binding::Unbound);
    let several = policy("[\"dns:pb.test\", \"cn:x\"]");
    assert_eq!(several.binding(pb.as_ref(), one), Binding::Own);
    // The id was taken from one, and given to the other.
    let rights = |policy: &Policy, who: &Option<Identity>| policy.rights(who.as_ref());
    assert!(!rights(&several, &pa).keep(&rights(&first, &pa)));
    assert!(rights(&several, &pb).keep(&rights(&first, &pb)));
    let none = Policy::default();
    assert!(rights(&first, &pb).keep(&rights(&none, &pb)), "no client loses what it had not");
    assert!(!rights(&none, &pa).keep(&rights(&first, &pa)));
    assert_eq!(rights(&none, &pa).binding(one), Binding::Unbound);
    assert_eq!(Rights::everything().binding(one), Binding::Own);
}

#[test]
fn each_fault_has_its_line() {
    let rule = |who: &str, actions: &str, paths: &str| {
        format!("\n\n[[allow]]\nwho = [{who}]\ndo = [{actions}]\npaths = [{paths}]\n")
    };
    let cn = "\"cn:a\"";
    type Case<'a> = (String, usize, fn(&PolicyFault) -> bool);
    let quota = |limit: &str| format!("\n[[quota]]\nwho = [\"cn:a\"]\n{limit}");
    let cases: [Case<'_>; 32] = [
        (quota(""), 2, |f| matches!(f, PolicyFault::NoLimit)),
        (quota("bytes = 16_383"), 2, |f| matches!(f, PolicyFault::TooFewBytes(16_383))),
        (quota("waiting_jobs = 9"), 2, |f| matches!(f, PolicyFault::QueuesWithoutPaths)),
        (quota("links = 1\npaths = [\"/a\"]"), 2, |f| matches!(f, PolicyFault::QueuesWithoutPaths)),
        (quota("queues = 9\npaths = [\"/a\", \"/$b\"]"), 5, |f| {
            matches!(f, PolicyFault::Variable(_))
        }),
        (quota("messages = 255"), 2, |f| matches!(f, PolicyFault::TooFewMessages(255))),
        (quota("links = 0"), 4, |f| matches!(f, PolicyFault::Toml(_))),
        // No identity could ever match.
        (rule("\"token:shop \"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::Subject(_))),
        (rule("\"token:a/b\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::Subject(_))),
        (rule("\"unix:007\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::User(_))),
        (rule("\"unix:00*\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::User(_))),
        (rule("\"unix:4294967296\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::User(_))),
        (rule("\"unix:ann\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::User(_))),
        (rule("\"cn: ann\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::Subject(_))),
        (rule("\"dns:bü.test\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::Subject(_))),
        (rule(cn, "\"act\"", "\"/home/{user}/**\""), 6, |f| matches!(f, PolicyFault::Variable(_))),
        (rule(cn, "\"fly\"", "\"/a\""), 5, |f| matches!(f, PolicyFault::Action(_))),
        (rule(cn, "\"act\"", "\"/a\", \"a[\""), 6, |f| matches!(f, PolicyFault::Path(_))),
        (rule(cn, "\"act\"", "\"/${user\""), 6, |f| matches!(f, PolicyFault::Variable(_))),
        (rule(cn, "\"act\"", "\"/**${user}\""), 6, |f| matches!(f, PolicyFault::Path(_))),
        (rule("\"alice\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::Subject(_))),
        (rule("\"cn:\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::Subject(_))),
        (rule("\"ip:a\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::Subject(_))),
        (rule("\"group:x\"", "\"act\"", "\"/\""), 4, |f| matches!(f, PolicyFault::Group(_))),
        (rule("", "\"act\"", "\"/\""), 3, |f| matches!(f, PolicyFault::Empty("who"))),
        (rule(cn, "", "\"/\""), 3, |f| matches!(f, PolicyFault::Empty("do"))),
        (rule(cn, "\"act\"", ""), 3, |f| matches!(f, PolicyFault::Empty("paths"))),
        (String::from("[groups]\nx = [\"group:y\"]"), 2, |f| matches!(f, PolicyFault::Nested(_))),
        (String::from("\n[publishers]\nx = [\"cn:a\"]"), 3, |f| {
            matches!(f, PolicyFault::Publisher(_))
        }),
        (
            format!(
                "[publishers]\n\"{0}\" = [\"cn:a\"]\n\"{1}\" = [\"cn:b\"]",
                "0198f2a4-5b7a-7c3d-8e4f-a1b2c3d4e5f6", "0198F2A4-5b7a-7c3d-8e4f-a1b2c3d4e5f6"
            ),
            2,
            |f| matches!(f, PolicyFault::PublisherTwice(_)),
        ),
        (String::from("\n\n[[allow]]\nwhom = []"), 4, |f| matches!(f, PolicyFault::Toml(_))),
        (String::from("a = [\n"), 1, |f| matches!(f, PolicyFault::Toml(_))),
    ];
    for (text, line, is_expected) in cases {
        let error = Policy::parse(&text).unwrap_err();
        assert!(is_expected(&error.fault), "{text}: {error}");
        assert_eq!(error.line, line, "{text}: {error}");
    }
}

#[test]
fn of_several_quotas_the_smallest_counts() {
    let text = "[groups]\ng = [\"cn:a\"]\n\
                [[quota]]\nwho = [\"*\"]\nlinks = 8\nhandshakes = 5\n\
                [[quota]]\nwho = [\"group:g\"]\nlinks = 9\nbytes = 140_000\nhandshakes = 3\n\
                [[quota]]\nwho = [\"cn:b\"]\nbytes = 40_000\nmessages = 1_000\n\
                [[quota]]\nwho = [\"cn:c\"]\nmessages = 256\nregistered_paths = 7\n\
                [[quota]]\nwho = [\"anonymous\"]\nbytes = 16_384\n";
    let policy = Policy::parse(text).unwrap();
    let of = |who: &str| {
        let Quota { links, handshakes, bytes, messages, .. } = policy.quota(identity(who).as_ref());
        let (links, handshakes) = (links.map(|n| n.get()), handshakes.map(|n| n.get()));
        (links, handshakes, bytes.map(|n| n.get()), messages.map(|n| n.get()))
    };
    assert_eq!(of("cn:a"), (Some(8), Some(3), Some(140_000), None));
    assert_eq!(of("cn:b"), (Some(8), Some(5), Some(40_000), Some(1_000)));
    assert_eq!(of("dns:a"), (Some(8), Some(5), None, None));
    assert_eq!(of(""), (None, None, Some(16_384), None));
    let registered_paths = policy.quota(identity("cn:c").as_ref()).registered_paths;
    assert_eq!(registered_paths.map(|n| n.get()), Some(7));
    // A rate serves only so many links.
    let links_max = |who: &str| policy.quota(identity(who).as_ref()).links_max();
    assert_eq!(links_max("cn:a"), Some((8, LinksLimit::Links)));
    assert_eq!(links_max("cn:b"), Some((2, LinksLimit::Bytes)));
    assert_eq!(links_max("cn:c"), Some((1, LinksLimit::Messages)));
    assert_eq!(links_max(""), Some((1, LinksLimit::Bytes)));
    assert!(policy.rights(identity("cn:a").as_ref()).is_nothing(), "a quota allows nothing");
}

#[test]
fn every_quota_of_queues_counts_on_the_paths_of_its_client() {
    let text = "[[quota]]\nwho = [\"token:*\"]\npaths = [\"/t/${user}/**\"]\nwaiting_jobs = 5\n\
                [[quota]]\nwho = [\"*\", \"anonymous\"]\nlinks = 3\n\
                [[quota]]\nwho = [\"*\", \"anonymous\"]\npaths = [\"/all/**\", \"/x/${user}\"]\n\
                queues = 2\nwaiting_bytes = 100\n";
    let policy = Policy::parse(text).unwrap();
    let of = |who: &str| -> Vec<(usize, Vec<String>)> {
        let quotas = policy.queue_quotas(identity(who).as_ref());
        let texts = |globs: &[Glob]| globs.iter().map(ToString::to_string).collect();
        quotas.iter().map(|quota| (quota.line, texts(&quota.paths))).collect()
    };
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let own = (1, texts(&["/t/a/**"]));
    assert_eq!(of("token:a"), [own, (8, texts(&["/all/**", "/x/a"]))]);
    assert_eq!(of("cn:b"), [(8, texts(&["/all/**", "/x/b"]))]);
    assert_eq!(of(""), [(8, texts(&["/all/**"]))]);
    let limits = policy.queue_quotas(None)[0].limits;
    assert_eq!(
        (
            limits.queues.map(|n| n.get()),
            limits.waiting_jobs,
            limits.waiting_bytes.map(|n| n.get())
        ),
        (Some(2), None, Some(100))
    );
    let moved = Policy::parse(&format!("\n\n{text}")).unwrap();
    assert!(Policy::have_same_quotas(Some(&policy), Some(&moved)));
    assert!(!Policy::have_same_quotas(Some(&policy), None));
}

#[test]
fn dns_names_have_no_case_and_no_final_dot() {
    let rule = |effect: &str, who: &str| {
        format!("[[{effect}]]\nwho = [{who:?}]\ndo = [\"work\"]\npaths = [\"/**\"]\n")
    };
    let text = rule("allow", "dns:*.test") + &rule("deny", "dns:Bad.Test.");
    let policy = Policy::parse(&text).unwrap();
    let may = |who: &str| {
        let path = Path::new("/a").unwrap();
        policy.decide(identity(who).as_ref(), Action::Work, &path).is_allowed()
    };
    assert!(may("dns:good.test") && may("dns:GOOD.test."));
    assert!(!may("dns:bad.test") && !may("dns:BAD.test") && !may("dns:bad.test."));
}

#[test]
fn a_policy_is_bounded() {
    let long = "#".repeat(super::POLICY_BYTES_MAX + 1);
    let too_long = Policy::parse(&long).unwrap_err();
    assert_eq!(too_long.fault, PolicyFault::TooLong(long.len()));
    let rule = |paths: usize| {
        let paths = vec!["\"/a\""; paths].join(",");
        format!("[[allow]]\nwho = [\"*\"]\ndo = [\"act\"]\npaths = [{paths}]\n")
    };
    assert!(Policy::parse(&rule(4_096)).is_ok());
    let error = Policy::parse(&(rule(4_096) + &rule(1))).unwrap_err();
    assert_eq!(error.fault, PolicyFault::TooManyPaths(4_097));
    let members = vec!["\"cn:a\""; 1_000].join(",");
    let rules = "[[deny]]\nwho = [\"group:g\"]\ndo = [\"act\"]\npaths = [\"/\"]\n".repeat(66);
    let error = Policy::parse(&format!("[groups]\ng = [{members}]\n{rules}")).unwrap_err();
    assert_eq!(error.fault, PolicyFault::TooManySubjects);
    assert_eq!(
        Effect::Deny,
        Policy::parse(&rule(1).replace("allow", "deny")).unwrap().rules()[0].effect
    );
}
