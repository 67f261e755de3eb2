//! The examples do what they say.

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../checksums.rs"]
mod checksums;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../fan_out.rs"]
mod fan_out;

#[tokio::test]
async fn checksums_are_those_of_the_files_and_one_that_is_gone_says_so() -> anyhow::Result<()> {
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
async fn a_newsletter_reaches_whom_it_can_and_the_others_are_dead_letters() -> anyhow::Result<()> {
    let readers =
        ["a@fast.example", "b@slow.example", "c@down.example", "d@down.example", "nobody@x"];
    let sent = fan_out::newsletter(readers.map(str::to_owned).to_vec()).await?;
    let dead = vec![("Busy".to_owned(), 2), ("NoSuchMailbox".to_owned(), 1)];
    assert_eq!(sent, fan_out::Sent { sent: 2, dead });
    Ok(())
}
