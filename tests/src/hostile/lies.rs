//! Peers that claim what is not theirs: leases, sessions, queues, publishers. Each claim has to be
//! refused, by the right code.

use longshore::protocol::limits::EPOCH_MAX;
use longshore::protocol::messages::resolver::{
    Announce, Change, FromReplica, PathAnswer, PathText, RequestRefusal, Resolve, ToReplica,
};
use longshore::protocol::messages::work::{
    Action, Filter, FromPublisher, JobsQuery, Request, RequestError, Selection, Sources, Started,
    Subscribe, ToPublisher, Tokens,
};
use longshore::protocol::{
    CheckpointOutcome, EnqueueOutcome, Epoch, Gate, JobId, Refusal, Role, SettleOutcome, Token,
};
use longshore::{PublisherId, PublisherInfo};

use super::bombs::refused_subscription;
use super::hashes::{announce, write};
use super::jobs::job;
use super::peer::{Peer, session};
use super::subscriptions::glob;
use super::{Attacker, GROUND, OTHERS, Outcome, Surprise, expect};

/// Tokens around Mallory's own that are tried: those of others' leases are among them, and Trudy's
/// always.
const GUESSES: u64 = 2_000;

/// Settles, renews, starts and checkpoints leases of others, whose tokens are near Mallory's own.
pub(super) async fn leases_of_others(attacker: &Attacker) -> Outcome {
    let path = format!("{GROUND}/leases");
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        let (secret, role) = (&attacker.target.trudy, Role::Worker);
        let mut trudy = Peer::dial_as(attacker, role, secret, session()).await?;
        trudy.attached(Tokens::default()).await?;
        trudy.enqueue(1, &[&path]).await?;
        let of_trudy = trudy.take_job(1, &path).await?;
        let mut link = Peer::attach(attacker, Role::Worker).await?;
        link.enqueue(1, &[&path]).await?;
        let own = link.take_job(1, &path).await?;
        let mut guesses = guesses(own);
        if !guesses.contains(&of_trudy) {
            guesses[0] = of_trudy;
        }
        let outcomes = link.complete(1, &guesses).await?;
        let stale = outcomes.iter().all(|outcome| *outcome == SettleOutcome::StaleToken);
        expect(stale && outcomes.len() == guesses.len(), || "a guess settles a job".to_owned())?;
        let stale = link.renew(&guesses).await?;
        expect(stale == guesses, || "a guess renews a lease".to_owned())?;
        let started =
            Started { tokens: Tokens(guesses.clone()), running_ms: vec![0; guesses.len()] };
        link.tell_publisher(&ToPublisher::Started(started)).await?;
        let lost = link
            .answer_of_publisher("Revoked", |message| match message {
                FromPublisher::Revoked { tokens, .. } => Some(tokens.0),
                _ => None,
            })
            .await?;
        expect(lost == guesses, || "a guess starts a job".to_owned())?;
        for token in guesses.iter().take(50) {
            let outcome = link.checkpoint(*token).await?;
            let is_stale = outcome == CheckpointOutcome::StaleToken;
            expect(is_stale, || format!("a checkpoint of a guess is {outcome:?}"))?;
            let read = link.request(2, Request::Checkpoints { token: *token }).await?;
            let is_stale = read == Err(RequestError::StaleToken);
            expect(is_stale, || format!("checkpoints of a guess: {read:?}"))?;
        }
        // Attaching as another session of Mallory's takes none of them, either.
        let secret = &attacker.target.mallory;
        let mut other = Peer::dial_as(attacker, Role::Worker, secret, session()).await?;
        let attached = other.attached(Tokens(guesses.clone())).await?;
        expect(attached.gone.0 == guesses, || "a guess moves a lease".to_owned())?;
        let outcomes = link.complete(2, &[own]).await?;
        expect(outcomes == [SettleOutcome::Accepted], || format!("her own is {outcomes:?}"))?;
        let outcomes = trudy.complete(1, &[of_trudy]).await?;
        expect(outcomes == [SettleOutcome::Accepted], || format!("Trudy's is {outcomes:?}"))?;
    }
    Ok(rounds as u64 * 4 * GUESSES)
}

/// Attaches as a session of Trudy's, whose id Mallory knows, and claims its lease.
pub(super) async fn sessions_of_others(attacker: &Attacker) -> Outcome {
    let path = format!("{GROUND}/sessions");
    let target = &attacker.target;
    let (session, mut rounds) = (session(), 0);
    let mut trudy = Peer::dial_as(attacker, Role::Worker, &target.trudy, session).await?;
    trudy.attached(Tokens::default()).await?;
    trudy.enqueue(1, &[&path]).await?;
    let token = trudy.take_job(1, &path).await?;
    while attacker.goes_on(rounds) {
        rounds += 1;
        let mut mallory = Peer::dial_as(attacker, Role::Worker, &target.mallory, session).await?;
        let attach = longshore::protocol::messages::work::Attach { resume: Tokens(vec![token]) };
        mallory.tell_publisher(&ToPublisher::Attach(attach)).await?;
        let reason = mallory.goodbye().await?;
        expect(reason.contains("another client"), || reason)?;
    }
    let outcomes = trudy.complete(1, &[token]).await?;
    expect(outcomes == [SettleOutcome::Accepted], || format!("Trudy's settle is {outcomes:?}"))?;
    Ok(rounds as u64)
}

/// Asks for, adds to, takes from and changes queues of others.
pub(super) async fn queues_of_others(attacker: &Attacker) -> Outcome {
    let all = || glob("/**");
    let everything = || Ok::<_, Surprise>(Filter::of(glob(OTHERS)?));
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        let mut link = Peer::attach(attacker, Role::Worker).await?;
        let outcome = link.enqueued(1, &[job(OTHERS, JobId(rand::random()))?]).await?;
        let forbidden = EnqueueOutcome::Refused(Refusal::Forbidden);
        expect(outcome == Ok(vec![forbidden]), || format!("a job is {outcome:?}"))?;
        let sources = Sources::one(glob(OTHERS)?);
        let subscribe = Subscribe { subscription: 3, sources, handlers: 1_000 };
        link.tell_publisher(&ToPublisher::Subscribe(subscribe)).await?;
        refused_subscription(&mut link, 3).await?;
        let query = JobsQuery { limit: 10, full: true, ..JobsQuery::of(everything()?) };
        let selection = || Ok::<_, Surprise>(Selection::Matching(everything()?));
        let act = |action| {
            Ok::<_, Surprise>(Request::Act {
                action,
                selection: selection()?,
                pace: None,
                dry_run: false,
            })
        };
        let requests = [
            Request::Jobs(query),
            Request::Queues { pattern: glob(OTHERS)?, cursor: 0 },
            Request::Feed { pattern: glob(OTHERS)?, after: None },
            Request::DeadGroups { filter: everything()? },
            Request::Pause { gate: Gate::Delivery, pattern: all()?, paused: true },
            act(Action::Cancel)?,
            act(Action::Drop)?,
            Request::Status,
            Request::Drain { draining: true },
            Request::Quiet { workers: Vec::new(), quiet: true, dry_run: false },
        ];
        for (number, request) in (1..).zip(requests) {
            let what = format!("{request:?}");
            let answer = link.request(number, request).await?;
            let is_forbidden = answer == Err(RequestError::Forbidden);
            expect(is_forbidden, || format!("{what} is answered by {answer:?}"))?;
        }
        expect(link.jobs(all()?).await.is_ok(), || "her own queues are hidden".to_owned())?;
        let mut reader = Peer::dial(attacker, Role::ResolverReader).await?;
        let paths = [PathText::new(OTHERS.as_bytes())].into_iter().collect();
        reader.tell_replica(&ToReplica::Resolve(Resolve { id: 1, paths })).await?;
        let answers = reader
            .answer_of_replica("Resolved", |message| match message {
                FromReplica::Resolved(resolved) => Some(resolved.answers),
                _ => None,
            })
            .await?;
        let hidden = matches!(&answers[..], [PathAnswer::NotFound | PathAnswer::Refused { .. }]);
        expect(hidden, || format!("others' paths are resolved: {answers:?}"))?;
    }
    Ok(rounds as u64 * 13)
}

/// Registers as the publisher of others, publishes its paths, and forgets it.
pub(super) async fn forged_publishers(attacker: &Attacker) -> Outcome {
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        let mut link = Peer::dial(attacker, Role::ResolverWriter).await?;
        let victim = attacker.target.publisher_id;
        let code = announced(&mut link, victim, EPOCH_MAX).await?;
        expect(code == Some(RequestRefusal::Forbidden), || format!("it registers: {code:?}"))?;
        link.tell_replica(&ToReplica::Clear { id: 2 }).await?;
        let code = refusal(&mut link, 2).await?;
        expect(code == Some(RequestRefusal::NotAnnounced), || format!("it withdraws: {code:?}"))?;
        announce(&mut link).await?;
        for (change, path) in [
            (Change::Publish, OTHERS),
            (Change::PublishDefault, "/"),
            (Change::PublishDefault, "/shop"),
            (Change::Publish, "/sys/publishers/mallory"),
        ] {
            let refused = write(&mut link, 3, change, &[path.to_owned()]).await?;
            expect(refused.is_some(), || format!("{change:?} {path} is accepted"))?;
        }
        let mut tool = Peer::dial(attacker, Role::ResolverReader).await?;
        let forget = ToReplica::ForgetPublisher { id: 2, publisher: victim };
        tool.tell_replica(&forget).await?;
        let code = refusal(&mut tool, 2).await?;
        expect(code == Some(RequestRefusal::Forbidden), || format!("it is forgotten: {code:?}"))?;
    }
    Ok(rounds as u64 * 7)
}

/// Registers with epochs that no publisher reaches, and with an earlier one than before.
pub(super) async fn forged_epochs(attacker: &Attacker) -> Outcome {
    let mut rounds = 0;
    while attacker.goes_on(rounds) {
        rounds += 1;
        let own = PublisherId(rand::random());
        let mut link = Peer::dial(attacker, Role::ResolverWriter).await?;
        for epoch in [EPOCH_MAX + 1, u64::MAX] {
            let code = announced(&mut link, own, epoch).await?;
            expect(code == Some(RequestRefusal::OverLimit), || format!("{epoch}: {code:?}"))?;
        }
        let code = announced(&mut link, own, 7).await?;
        expect(code.is_none(), || format!("her own publisher is refused: {code:?}"))?;
        let mut older = Peer::dial(attacker, Role::ResolverWriter).await?;
        let code = announced(&mut older, own, 6).await?;
        expect(code == Some(RequestRefusal::Superseded), || format!("an older start: {code:?}"))?;
        link.tell_replica(&ToReplica::Clear { id: 2 }).await?;
        refusal(&mut link, 2).await?;
    }
    Ok(rounds as u64 * 3)
}

/// Announces a publisher; why the replica refuses it.
async fn announced(
    link: &mut Peer,
    publisher: PublisherId,
    epoch: u64,
) -> Result<Option<RequestRefusal>, Surprise> {
    let address = "127.0.0.1:1".parse::<longshore::Address>();
    let address = address.map_err(|error| Surprise(error.to_string()))?;
    let publisher = PublisherInfo::new(publisher, Epoch(epoch), "mallory", [address]);
    let announce = Announce { id: 1, publisher, desired: Vec::new() };
    link.tell_replica(&ToReplica::Announce(announce)).await?;
    refusal(link, 1).await
}

/// Why the replica refuses a request of a writer; none if it does it.
async fn refusal(link: &mut Peer, request: u64) -> Result<Option<RequestRefusal>, Surprise> {
    link.answer_of_replica("answer to a writer", |message| match message {
        FromReplica::Announced(answer) if answer.id == request => Some(None),
        FromReplica::Written(answer) if answer.id == request && answer.last => Some(None),
        FromReplica::Refused { id, code, .. } if id == request => Some(Some(code)),
        _ => None,
    })
    .await
}

fn guesses(own: Token) -> Vec<Token> {
    let first = own.0.saturating_sub(GUESSES / 2);
    (first..first + GUESSES).filter(|guess| *guess != own.0).map(Token).collect()
}
