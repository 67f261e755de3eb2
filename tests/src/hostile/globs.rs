//! Globs as large as they may be, and larger, and globs that take long to match.

use longshore::protocol::Role;
use longshore::protocol::messages::resolver::{
    FromReplica, ListMatching, RequestRefusal, ToReplica, tag,
};
use longshore::protocol::messages::work::Request;

use super::bombs::message;
use super::peer::Peer;
use super::subscriptions::glob;
use super::{Attacker, GROUND, Outcome, Surprise, expect};

/// Lists by the most and the largest globs, and by larger ones, which are refused.
pub(super) async fn giant_globs(attacker: &Attacker) -> Outcome {
    let names: Vec<String> = (0..200).map(|n| format!("{n}")).collect();
    let wide = format!("{GROUND}/{{{}}}/**", names.join(","));
    let nested = format!("{GROUND}/{}a{}", "{".repeat(33), "}".repeat(33));
    let long = format!("{GROUND}/{}", "a".repeat(1_100));
    let many = format!("{GROUND}/{{a,b}}{{a,b}}{{a,b}}{{a,b}}{{a,b}}{{a,b}}{{a,b}}{{a,b}}{{a,b}}");
    let mut link = Peer::dial(attacker, Role::ResolverReader).await?;
    let mut requests = 0;
    while attacker.goes_on(requests as usize) {
        requests += 1;
        let globs = vec![glob(&wide)?; 64];
        link.tell_replica(&ToReplica::ListMatching(ListMatching { id: requests, globs })).await?;
        let refusal = refusal(&mut link, requests).await?;
        let is_right = refusal.is_none_or(|code| code == RequestRefusal::Busy);
        expect(is_right, || format!("large globs are refused by {refusal:?}"))?;
        let (beyond, wide) = (&nested, vec![wide.as_str(); 256]);
        for globs in [&[beyond.as_str()][..], &[&long], &[&many], &wide, &[GROUND; 257]] {
            requests += 1;
            let request = message(tag::LIST_MATCHING, |out| {
                out.u64(requests);
                out.u64(globs.len() as u64);
                globs.iter().for_each(|glob| out.string(glob));
            });
            link.send(&request).await?;
            let refusal = self::refusal(&mut link, requests).await?;
            let is_right =
                matches!(refusal, Some(RequestRefusal::Malformed | RequestRefusal::OverLimit));
            expect(is_right, || format!("globs over their limits: {refusal:?}"))?;
        }
    }
    Ok(requests)
}

/// Matches globs that a simple matcher tries in exponentially many ways, in segments and in paths.
pub(super) async fn backtracking_globs(attacker: &Attacker) -> Outcome {
    let deep = format!("{GROUND}{}", "/a".repeat(30));
    let broad = format!("{GROUND}/{}", "a".repeat(250));
    let mut link = Peer::attach(attacker, Role::Tool).await?;
    link.enqueue(1, &[&deep, &broad]).await?;
    let mut reader = Peer::dial(attacker, Role::ResolverReader).await?;
    let globs = [
        glob(&format!("{GROUND}{}/b", "/**/a".repeat(14)))?,
        glob(&format!("{GROUND}/{}b", "*a".repeat(100)))?,
        glob(&format!("/**{}/b", "/**/?".repeat(14)))?,
    ];
    let mut requests = 0;
    while attacker.goes_on(requests as usize) {
        for pattern in globs.clone() {
            requests += 1;
            let answer = link.request(requests, Request::Queues { pattern, cursor: 0 }).await?;
            expect(answer.is_ok(), || format!("a glob is refused: {answer:?}"))?;
        }
        requests += 1;
        let request = ListMatching { id: requests, globs: globs.to_vec() };
        reader.tell_replica(&ToReplica::ListMatching(request)).await?;
        refusal(&mut reader, requests).await?;
    }
    Ok(requests)
}

/// Why a listing is refused; none if it is answered.
async fn refusal(link: &mut Peer, request: u64) -> Result<Option<RequestRefusal>, Surprise> {
    link.answer_of_replica("answer to a listing", |message| match message {
        FromReplica::Listed(listed) if listed.id == request && listed.last => Some(None),
        FromReplica::Refused { id, code, .. } if id == request => Some(Some(code)),
        _ => None,
    })
    .await
}
