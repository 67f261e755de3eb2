//! A web server that enqueues jobs. `POST /welcomes` answers with a receipt once the job is on
//! disk; `GET /welcomes/{receipt}` waits for its result. Queue, web server and worker run in this
//! program, but could be separate processes: `cargo run --package longshore-examples --example
//! web`, and then
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
use axum::{Json, Router};
use longshore::Path;
use longshore::embedded::System;
use longshore::prelude::*;
use longshore::{JobEnd, JobLocator, JobLookupError, WaitError};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// How long a request waits for a result before it answers `retry-after`.
const RESULT_WAIT: Duration = Duration::from_secs(20);
/// How long an ended job and its result stay readable for late requests, in milliseconds.
const RETENTION_MS: u64 = 600_000;

/// A mail to write: the body of the request, and the payload of the job.
#[derive(serde::Serialize, serde::Deserialize)]
struct Welcome {
    to: String,
}

/// State shared by the handlers. Clones are cheap and use the same links.
#[derive(Clone)]
struct AppState {
    producer: Producer,
    queues: Queues,
}

fn routes(state: AppState) -> Router {
    Router::new()
        .route("/welcomes", post(enqueue))
        .route("/welcomes/{receipt}", get(result))
        .with_state(state)
}

/// Answers once the job is on its publisher's disk, so the answer stays true after a power cut.
///
/// A client that disconnects drops this future, and it is then unknown whether the job was
/// enqueued. To enqueue it at most once, let the client choose the job's id.
async fn enqueue(
    State(state): State<AppState>,
    Json(welcome): Json<Welcome>,
) -> Result<Response, Failure> {
    let mut job = new_job(Path::new("/jobs/welcome")?, serde_json::to_vec(&welcome)?);
    job.options.keep_result = true;
    job.options.keep_ms = Some(RETENTION_MS);
    let receipt = state.producer.enqueue(job).await?.to_string();
    let location = [("location", format!("/welcomes/{receipt}"))];
    Ok((StatusCode::ACCEPTED, location, receipt).into_response())
}

/// Waits for the end of a job, and returns it. Any number of requests may wait; a client's
/// disconnect ends its wait.
async fn result(
    State(state): State<AppState>,
    UrlPath(receipt): UrlPath<String>,
) -> Result<Response, Failure> {
    let Ok(name) = receipt.parse::<JobLocator>() else {
        return Ok((StatusCode::NOT_FOUND, "not a receipt").into_response());
    };
    let answer = match state.queues.wait(&name, RESULT_WAIT).await {
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

/// A server-side error: it is printed here, and the client gets `retry-after`.
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

/// The running web server with its queue and worker.
pub(crate) struct Running {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Running {
    /// Answers pending requests, drains the worker, and stops the queue, in this order.
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
    let draining = worker.shutdown_handle();
    let working = tokio::spawn(worker.run(|job: Job<Welcome>, _: JobContext| async move {
        match job.payload.to.split_once('@') {
            Some(_) => Ok(longshore::Json(format!("a welcome to {}", job.payload.to))),
            None => Err(JobFailure::bury("not an address")),
        }
    }));

    let state = AppState { producer: system.producer(), queues: system.queues() };
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        axum::serve(listener, routes(state)).with_graceful_shutdown(stopped).await?;
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
