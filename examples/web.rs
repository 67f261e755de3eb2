//! A web server that enqueues jobs. `POST /welcomes` answers with a receipt once the job is on
//! disk; `GET /welcomes/{receipt}` waits for its result. Queue, web server and worker are in one
//! program here; any of them may be a process of its own: `cargo run --package longshore-examples
//! --example web`, and then
//!
//! ```text
//! curl -i -H 'content-type: application/json' -d '{"to":"ada@example.com"}' http://127.0.0.1:8080/welcomes
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json as JsonBody, Router};
use longshore::embedded::System;
use longshore::prelude::*;
use longshore::{JobEnd, JobLookupError, JobName, WaitError};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// How long a request waits for a result, before it is told to ask again.
const RESULT_WAIT: Duration = Duration::from_secs(20);
/// How long an ended job and its result stay readable, in milliseconds: who asks late is told as
/// well.
const KEPT_FOR_MS: u64 = 600_000;

/// A mail to write: what a browser sends, and the payload of the job.
#[derive(serde::Serialize, serde::Deserialize)]
struct Welcome {
    to: String,
}

/// What the handlers share. Both are cheap to clone: all clones use the same links.
#[derive(Clone)]
struct Site {
    producer: Producer,
    queues: Queues,
}

fn routes(site: Site) -> Router {
    Router::new()
        .route("/welcomes", post(enqueue))
        .route("/welcomes/{receipt}", get(result))
        .with_state(site)
}

/// Answers once the job is on its publisher's disk: what a browser was told is true after a power
/// cut.
///
/// A client that hangs up drops this future, and whether its job was taken is open then; one that
/// must not be taken twice has the client choose the job's id.
async fn enqueue(
    State(site): State<Site>,
    JsonBody(welcome): JsonBody<Welcome>,
) -> Result<Response, Failure> {
    let mut job = new_job(Path::new("/jobs/welcome")?, serde_json::to_vec(&welcome)?);
    job.options.keep_result = true;
    job.options.keep_ms = Some(KEPT_FOR_MS);
    let receipt = site.producer.enqueue(job).await?.to_string();
    let place = [("location", format!("/welcomes/{receipt}"))];
    Ok((StatusCode::ACCEPTED, place, receipt).into_response())
}

/// Waits for the end of a job, and tells it. Any number of requests may wait; a client that hangs
/// up waits no longer.
async fn result(
    State(site): State<Site>,
    UrlPath(receipt): UrlPath<String>,
) -> Result<Response, Failure> {
    let Ok(name) = receipt.parse::<JobName>() else {
        return Ok((StatusCode::NOT_FOUND, "that is no receipt").into_response());
    };
    let answer = match site.queues.wait(&name, RESULT_WAIT).await {
        Ok(JobEnd::Completed { result }) => {
            let kind = [("content-type", "application/json")];
            (kind, result.unwrap_or_default()).into_response()
        }
        Ok(JobEnd::Gone) | Err(WaitError::Lookup(JobLookupError::NotFound { .. })) => {
            (StatusCode::NOT_FOUND, "no such job").into_response()
        }
        Ok(JobEnd::Dead { error, .. }) => {
            let why = error.map_or_else(|| "it failed".to_owned(), |error| error.message);
            (StatusCode::UNPROCESSABLE_ENTITY, why).into_response()
        }
        Ok(JobEnd::Cancelled | JobEnd::Expired) => StatusCode::GONE.into_response(),
        Err(WaitError::TimedOut { away: None, .. }) => {
            (StatusCode::ACCEPTED, [("retry-after", "1")]).into_response()
        }
        Err(WaitError::TimedOut { away: Some(why), .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
        Err(error) => return Err(error.into()),
    };
    Ok(answer)
}

/// What went wrong on our side: the client is told to come again, and the reason is printed here.
struct Failure(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        eprintln!("{:#}", self.0);
        (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")]).into_response()
    }
}

/// The whole site, at an address of this machine.
pub(crate) struct Running {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Running {
    /// Answers what was asked, lets the worker end, and closes the queue, in this order.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        self.serving.await?
    }
}

/// Starts everything: a resolver, a publisher with its journal in a temporary folder, a worker, and
/// the web server.
pub(crate) async fn start(listen: SocketAddr) -> anyhow::Result<Running> {
    let journal = tempfile::tempdir()?;
    let system = System::start(journal.path()).await?;

    let worker = system.worker().durable_subscribe("/jobs/welcome");
    let draining = worker.handle();
    let working = tokio::spawn(worker.run(|job: Job<Welcome>, _: JobContext| async move {
        match job.payload.to.split_once('@') {
            Some(_) => Ok(Json(format!("a welcome to {}", job.payload.to))),
            None => Err(JobFailure::bury("nobody is called that")),
        }
    }));

    let site = Site { producer: system.producer(), queues: system.queues() };
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        axum::serve(listener, routes(site)).with_graceful_shutdown(stopped).await?;
        draining.drain();
        working.await??;
        system.stop().await?;
        drop(journal);
        Ok(())
    });
    Ok(Running { address, stop, serving })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let running = start(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))).await?;
    println!("http://{}/welcomes; ctrl-c ends it", running.address);
    tokio::signal::ctrl_c().await?;
    running.stop().await
}
