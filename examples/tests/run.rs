//! Runs the examples.

#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../checksums.rs"]
mod checksums;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../clock.rs"]
mod clock;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../deploy.rs"]
mod deploy;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../embedded.rs"]
mod embedded;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../kinds.rs"]
mod kinds;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../media.rs"]
mod media;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../nightly.rs"]
mod nightly;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../outbox.rs"]
mod outbox;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../prices.rs"]
mod prices;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../progress.rs"]
mod progress;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../torture.rs"]
mod torture;
#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../web.rs"]
mod web;

use std::net::SocketAddr;

use longshore::embedded::System;
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
async fn the_parts_of_a_movie_are_joined() -> anyhow::Result<()> {
    let movie = media::run().await?;
    let parts = (1..=6).map(|part| format!("{part} of 14 minutes"));
    assert_eq!(movie, parts.collect::<Vec<_>>().join(", "));
    Ok(())
}

#[tokio::test]
async fn a_report_catches_up_and_is_of_its_night() -> anyhow::Result<()> {
    let [reports, nights] = nightly::run().await?;
    assert_eq!(reports, nights);
    Ok(())
}

#[tokio::test]
async fn a_relay_that_repeats_enqueues_each_order_once() -> anyhow::Result<()> {
    assert_eq!(outbox::orders().await?, 3);
    Ok(())
}

#[tokio::test]
async fn an_import_resumes_from_its_last_checkpoint() -> anyhow::Result<()> {
    assert_eq!(progress::rows(12).await?, 7);
    Ok(())
}

#[tokio::test]
async fn a_deploy_loses_no_job() -> anyhow::Result<()> {
    let (old, new, failed) = deploy::deploy().await?;
    assert_eq!((old + new, failed), (200, 0));
    assert!(old > 0 && new > 0, "{old} and {new}");
    Ok(())
}

#[tokio::test]
async fn a_day_passes_at_once() -> anyhow::Result<()> {
    assert_eq!(clock::a_day_passes().await?, [(0, 0), (1, 1), (1, 0)]);
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
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;
    let worker = system.worker().handle(web::write);
    let stop = worker.shutdown_handle();
    let working = tokio::spawn(worker.run());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let routes = web::routes(system.producer());
    let serving = tokio::spawn(async { axum::serve(listener, routes).await });

    let enqueue = async |to: &str| {
        let answer = http(address, "POST /welcomes", &format!("{{\"to\":\"{to}\"}}")).await?;
        assert_eq!(answer.status, 202, "{answer:?}");
        http(address, &format!("GET /welcomes/{}", answer.body), "").await
    };
    let answer = enqueue("ada@example.com").await?;
    assert_eq!((answer.status, answer.body.as_str()), (200, "a welcome to ada@example.com"));
    let answer = enqueue("nobody").await?;
    assert_eq!((answer.status, answer.body.as_str()), (422, "not an address"));
    assert_eq!(http(address, "GET /welcomes/mine", "").await?.status, 404);
    let no_such_job = "GET /welcomes/00000000-0000-7000-8000-000000000000";
    assert_eq!(http(address, no_such_job, "").await?.status, 404);
    let no_mail = http(address, "POST /welcomes", "{}").await?;
    assert_eq!(no_mail.status, 422, "{no_mail:?}");
    serving.abort();
    stop.drain();
    working.await??;
    Ok(system.stop().await?)
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
