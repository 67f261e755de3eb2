//! A web server that enqueues jobs. `POST /welcomes` answers with a receipt once the job is on
//! disk; `GET /welcomes/{receipt}` waits for its result. The worker runs in this program, but could
//! be another. With `longshore up` in another terminal: `cargo run --package longshore-examples
//! --example web`, and then
//!
//! ```text
//! curl -i -H 'content-type: application/json' -d '{"to":"ada@example.com"}' http://127.0.0.1:8080/welcomes
//! ```

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use longshore::prelude::*;
use longshore::{JobEnd, JobLocator, JobLookupError, ResultError, WaitError};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// The body of the request, and the payload of the job. Its result is readable for ten minutes.
#[derive(Serialize, Deserialize, JobKind)]
#[job(path = "/jobs/welcome", output = String, keep = "10m", keep_result)]
pub(crate) struct Welcome {
    to: String,
}

type Reply = (StatusCode, String);

pub(crate) async fn write(Payload(mail): Payload<Welcome>) -> Result<String, JobFailure> {
    mail.to.find('@').ok_or_else(|| JobFailure::bury("not an address"))?;
    Ok(format!("a welcome to {}", mail.to))
}

/// A client that disconnects drops this future, and it is then unknown whether the job was
/// enqueued. To enqueue it at most once, let the client choose its id (`Enqueue::id`).
async fn enqueue(producer: State<Producer>, welcome: Json<Welcome>) -> Reply {
    match producer.enqueue(welcome.0).await {
        Ok(receipt) => (StatusCode::ACCEPTED, receipt.to_string()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

async fn result(producer: State<Producer>, receipt: Path<String>) -> Reply {
    let Ok(job) = receipt.parse::<JobLocator>() else {
        return (StatusCode::NOT_FOUND, "not a receipt".to_owned());
    };
    match producer.result::<Welcome>(job, Duration::from_secs(20)).await {
        Ok(text) => (StatusCode::OK, text),
        Err(ResultError::Ended { end: JobEnd::Dead { error: Some(error), .. }, .. }) => {
            (StatusCode::UNPROCESSABLE_ENTITY, error.message)
        }
        Err(ResultError::Wait {
            error: WaitError::Lookup(JobLookupError::NotFound { .. }),
            ..
        }) => (StatusCode::NOT_FOUND, "no such job".to_owned()),
        // It has not ended yet, or its publisher is away: the text says which.
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

pub(crate) fn routes(producer: Producer) -> Router {
    Router::new()
        .route("/welcomes", post(enqueue))
        .route("/welcomes/{receipt}", get(result))
        .with_state(producer)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let ctrl_c = || async { drop(tokio::signal::ctrl_c().await) };
    let worker = Worker::connect("127.0.0.1").handle(write).shutdown(ctrl_c());
    let working = tokio::spawn(worker.run());
    let routes = routes(Producer::connect("127.0.0.1"));
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    axum::serve(listener, routes).with_graceful_shutdown(ctrl_c()).await?;
    working.await??;
    Ok(())
}
