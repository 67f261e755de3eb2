//! The token file of servers: changed by one process at a time, and replaced in one step.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longshore_access::{TOKEN_FILE_BYTES_MAX, Tokens};

use crate::failure::{Failure, FailureKind};
use crate::files;

/// How long a command waits for another that changes the file; each takes milliseconds.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// A token file, which need not exist yet.
#[derive(Clone, Debug)]
pub(crate) struct TokenStore {
    file: PathBuf,
}

impl TokenStore {
    pub(crate) fn new(file: PathBuf) -> TokenStore {
        TokenStore { file }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Reads all tokens; none if there is no file.
    pub(crate) fn read(&self) -> Result<Option<Tokens>, Failure> {
        let text = match files::read_text(&self.file, TOKEN_FILE_BYTES_MAX as u64) {
            Ok(text) => text,
            Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(self.failed("read", &why)),
        };
        Tokens::parse(&text).map(Some).map_err(|error| {
            let why = format!("{}:{}: {}", self.file.display(), error.line, error.fault);
            Failure::new(FailureKind::Failed, why)
        })
    }

    /// Changes the tokens, and returns what the change returns. Two processes that change the file
    /// at once lose nothing: the folder is locked meanwhile, as the file itself is replaced.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Tokens) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let _locked = self.lock().map_err(|why| self.failed("lock the folder of", &why))?;
        let mut tokens = self.read()?.unwrap_or_default();
        let done = change(&mut tokens)?;
        files::replace(&self.file, &tokens.to_text()).map_err(|why| self.failed("write", &why))?;
        Ok(done)
    }

    fn lock(&self) -> io::Result<File> {
        let file = files::real_path(&self.file)?;
        let folder = files::folder_of(&file);
        fs::create_dir_all(folder)?;
        let folder = File::open(folder)?;
        let began = Instant::now();
        loop {
            match folder.try_lock() {
                Ok(()) => return Ok(folder),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_WAIT_MAX => {
                    std::thread::sleep(LOCK_RETRY);
                }
                Err(TryLockError::WouldBlock) => {
                    let why = format!("another process has locked it for {LOCK_WAIT_MAX:?}");
                    return Err(io::Error::new(ErrorKind::TimedOut, why));
                }
                Err(TryLockError::Error(why)) => return Err(why),
            }
        }
    }

    /// A warning, if every user of the machine can read or change the file.
    pub(crate) fn warning(&self) -> Option<String> {
        let mode = fs::metadata(&self.file).ok()?.permissions().mode();
        let what = match mode & 0o006 {
            0 => return None,
            0o004 => "every user of this machine can read",
            _ => "every user of this machine, who can so become any client, can change",
        };
        Some(format!("{what} {}; chmod o= protects it", self.file.display()))
    }

    fn failed(&self, act: &str, why: &io::Error) -> Failure {
        Failure::new(FailureKind::Failed, format!("cannot {act} {}: {why}", self.file.display()))
    }
}
