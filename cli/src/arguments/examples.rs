//! The examples at the end of each command's help.

/// Each command with its examples: a command line, then what it does.
pub(super) const EXAMPLES: [(&str, &[(&str, &str)]); 24] = [
    (
        "up",
        &[
            ("longshore up", "data in ~/.local/share/longshore"),
            ("longshore up --data /tmp/try --replicas 1", "one replica, and data elsewhere"),
        ],
    ),
    (
        "resolver",
        &[
            (
                "longshore resolver run --listen 10.0.0.5:4770 --insecure",
                "a replica, for other machines",
            ),
            ("longshore resolver status --publishers", "what each replica knows of publishers"),
        ],
    ),
    (
        "publisher",
        &[
            ("longshore publisher run --data /srv/jobs --default /jobs", "every queue below /jobs"),
            ("longshore publisher status", "all publishers"),
            ("longshore publisher drain mail-1 --wait", "before its removal"),
        ],
    ),
    (
        "enqueue",
        &[
            ("longshore enqueue /jobs/mail 'to: ann'", "one job"),
            (
                "longshore enqueue /jobs/mail --file letter.txt --delay 5m",
                "a file, in five minutes",
            ),
            ("find . -type f | longshore enqueue /jobs/sha --lines", "a job for each line"),
            (
                "find in -type f -exec longshore enqueue /jobs/mail --file {} +",
                "a job for each file of a folder",
            ),
            ("longshore enqueue /jobs/sum '1 2' --wait", "print its result"),
        ],
    ),
    (
        "work",
        &[
            ("longshore work /jobs/mail -- ./send-mail", "the payload is its standard input"),
            (
                "longshore work '/jobs/**' --concurrency 8 -- ./run-job",
                "$LONGSHORE_JOB_PATH is the queue",
            ),
            ("longshore work /jobs/sha --until-empty -- sha256sum", "end when nothing is left"),
        ],
    ),
    (
        "jobs",
        &[
            ("longshore jobs", "the first 100 of all queues"),
            ("longshore jobs /jobs/mail --state running", "what runs now"),
            ("longshore jobs '/jobs/**' --state dead --json", "a line of JSON for each"),
        ],
    ),
    (
        "job",
        &[
            (
                "longshore job 018f6d1e-7c1a-7000-8000-000000000001",
                "its state, attempts and result",
            ),
            ("longshore job 018f6d1e-7c1a-7000-8000-000000000001 --wait", "until it has ended"),
        ],
    ),
    (
        "tail",
        &[
            ("longshore tail", "every transition of every job"),
            ("longshore tail /jobs/mail --snapshot --json", "existing jobs first, as JSON"),
        ],
    ),
    (
        "cancel",
        &[
            ("longshore cancel '/jobs/acme/**' --dry-run", "how many it would be"),
            ("longshore cancel '/jobs/acme/**' --yes", "cancel them without a question"),
        ],
    ),
    (
        "dead",
        &[
            ("longshore dead groups", "which errors, how often"),
            ("longshore dead ls /jobs/mail", "which jobs"),
            ("longshore dead revive '/jobs/**' --rate 10", "all again, ten a second"),
        ],
    ),
    (
        "purge",
        &[
            (
                "longshore purge /jobs/mail --state completed",
                "asks, then deletes what has completed",
            ),
            ("longshore purge '/**' --state dead --older-than 90d --yes", "in a script"),
        ],
    ),
    (
        "queue",
        &[
            ("longshore queue ls", "all queues"),
            (
                "longshore queue set /jobs/mail --max-attempts 5 --backoff fixed:10s",
                "for all its jobs",
            ),
            ("longshore queue close '/jobs/acme/**'", "refuse new jobs"),
        ],
    ),
    ("pause", &[("longshore pause '/jobs/acme/**'", "also queues that are made later")]),
    ("resume", &[("longshore resume '/jobs/acme/**'", "the same pattern as it was paused with")]),
    (
        "workers",
        &[
            ("longshore workers ls", "who is connected, and what they hold"),
            ("longshore workers quiet 'mail-*' --wait", "before a deploy"),
        ],
    ),
    (
        "directory",
        &[
            ("longshore directory ls /jobs", "its children"),
            ("longshore directory resolve /jobs/mail", "the publishers of a path"),
            ("longshore directory watch '/jobs/**'", "and what changes"),
        ],
    ),
    (
        "value",
        &[
            ("longshore value publish /hall/lamp off --writable", "until it is stopped"),
            ("longshore value subscribe '/hall/**'", "each value and each change"),
            ("longshore value write /hall/lamp on", "answered by its publisher"),
        ],
    ),
    (
        "journal",
        &[
            ("longshore journal copy /srv/jobs /backup/jobs", "a backup, also while it runs"),
            ("longshore journal verify /backup/jobs", "all damage"),
        ],
    ),
    (
        "context",
        &[
            ("longshore context add prod --resolver 10.0.0.1:4770,10.0.0.2:4770", "its replicas"),
            ("longshore context use prod", "for the commands that follow"),
            ("longshore --context test stat", "for one command"),
        ],
    ),
    (
        "cert",
        &[
            ("longshore cert ca --dir tls", "an authority of your own: tls/ca.pem, tls/ca.key"),
            (
                "longshore cert issue berlin-1 --host 10.0.0.7 --dir tls",
                "for a publisher at 10.0.0.7",
            ),
            ("longshore cert issue mail-worker --dir tls", "for a worker"),
            ("longshore cert show tls/*.pem", "names, validity, and whether keys fit"),
        ],
    ),
    (
        "token",
        &[
            ("longshore token create shop --expires 90d > shop.token", "umask 077 before it"),
            ("longshore token ls", "names and when they expire"),
            ("longshore token revoke shop", "refused within a second"),
        ],
    ),
    (
        "access",
        &[
            ("longshore access check token:shop enqueue /jobs/mail", "and by which rule"),
            ("longshore access show dns:berlin-1.example", "everything that it may do"),
        ],
    ),
    (
        "completions",
        &[
            ("longshore completions bash > /etc/bash_completion.d/longshore", "for all users"),
            ("longshore completions zsh > ~/.zfunc/_longshore", "a folder of $fpath"),
        ],
    ),
    (
        "bench",
        &[
            ("longshore bench e2e", "jobs a second on this machine"),
            ("longshore bench latency --rate 1000", "from enqueue to handler"),
        ],
    ),
];

/// The examples as text: command lines aligned, each with its purpose.
pub(super) fn text(examples: &[(&str, &str)]) -> String {
    let width = examples.iter().map(|(line, _)| line.len()).max().unwrap_or_default();
    let lines = examples.iter().map(|(line, what)| format!("\n  {line:<width$}  # {what}"));
    format!("Examples:{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::command;

    /// The words of a line, without the quotes around some.
    fn words(line: &str) -> Vec<&str> {
        let quoted = line.split('\'').enumerate();
        let words = quoted.flat_map(|(n, part)| match n % 2 {
            0 => part.split_whitespace().collect::<Vec<_>>(),
            _ => vec![part],
        });
        words.collect()
    }

    #[test]
    fn each_example_is_a_command_line_of_its_command() {
        for (name, examples) in EXAMPLES {
            for (line, _) in examples {
                let line = line.rsplit(" | ").next().unwrap_or(line);
                let line = line.rsplit(" -exec ").next().unwrap_or(line);
                let words = words(line);
                assert_eq!(words[1].trim_start_matches("--"), name, "{line}");
                let words = words.into_iter().take_while(|word| *word != ">");
                if let Err(error) = command().try_get_matches_from(words) {
                    panic!("{line}: {error}");
                }
                assert!(line.len() <= 70, "{line}");
            }
        }
    }
}
