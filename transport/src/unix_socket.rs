//! A Unix socket that a listener has beside its TCP port: for clients of the same machine, which
//! the kernel names.
//!
//! The kernel's stream sockets are read, written and shut down alike. So a link over a Unix socket
//! is a `TcpStream` over its descriptor, without the options of TCP, and no other code knows it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};

use longshore_protocol::SocketPath;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use crate::listener::{BACKLOG, BindError};

/// The address of the other side, in logs and for limits: this machine, without a port.
pub(crate) const LOCAL_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Its owner and its group may connect.
const MODE: u32 = 0o660;
/// The mode of its lock.
const LOCK_MODE: u32 = 0o600;
/// In the mode of its folder: that its group, or everybody, may write to it.
const OTHERS_WRITE: u32 = 0o022;

/// A socket that is listened on. Dropped, its file is removed.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    _file: SocketFile,
}

/// The file of a socket, which this process has made.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
    /// Held for as long as the file is there.
    _lock: File,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have replaced it.
        if file_id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl UnixSocket {
    /// Listens at `path`, in place of a socket on which nobody listens. Nobody else can write to
    /// its folder, so that nothing there changes between a check and its use, and whoever connects
    /// meets this process.
    pub(crate) fn bind(path: &SocketPath) -> Result<UnixSocket, BindError> {
        let failed = |source| BindError::Unix { path: path.clone(), source };
        let at = Path::new(path.as_str());
        check_folder(path)?;
        let lock = lock(path)?;
        if let Ok(found) = fs::symlink_metadata(at) {
            if !found.file_type().is_socket() {
                return Err(BindError::UnixNotASocket { path: path.clone() });
            }
            // Of a process that takes no lock.
            if let Listening::Yes { pid } = listening(at).map_err(failed)? {
                return Err(BindError::UnixInUse { path: path.clone(), pid });
            }
            fs::remove_file(at).map_err(failed)?;
        }
        let bind = || -> io::Result<UnixSocket> {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(at)?)?;
            let file = SocketFile { path: at.to_owned(), id: file_id(at)?, _lock: lock };
            // Nobody can connect before it listens.
            fs::set_permissions(at, fs::Permissions::from_mode(MODE))?;
            socket.listen(BACKLOG as i32)?;
            socket.set_nonblocking(true)?;
            let listener = std::os::unix::net::UnixListener::from(OwnedFd::from(socket));
            Ok(UnixSocket { listener: UnixListener::from_std(listener)?, _file: file })
        };
        bind().map_err(failed)
    }

    /// The next connection, and the number of its user.
    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, u32)>> {
        let (stream, _) = ready!(self.listener.poll_accept(cx))?;
        let user = stream.peer_cred()?.uid();
        Poll::Ready(as_tcp(stream).map(|stream| (stream, user)))
    }
}

/// The number that the kernel gives to every user without one in this process's user namespace, as
/// to those of the host of a container; none if all have one.
pub(crate) fn unmapped_user() -> Option<u32> {
    static NUMBER: OnceLock<Option<u32>> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        let numbers = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if numbers.split_whitespace().eq(["0", "0", "4294967295"]) {
            return None;
        }
        let set = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        Some(set.and_then(|number| number.trim().parse().ok()).unwrap_or(65_534))
    })
}

/// Connects to the socket at `path`.
pub(crate) async fn connect(path: &SocketPath) -> io::Result<TcpStream> {
    as_tcp(UnixStream::connect(path.as_str()).await?)
}

fn as_tcp(stream: UnixStream) -> io::Result<TcpStream> {
    TcpStream::from_std(std::net::TcpStream::from(OwnedFd::from(stream.into_std()?)))
}

/// Refuses a folder in which others could put a socket of their own.
fn check_folder(path: &SocketPath) -> Result<(), BindError> {
    let failed = |source| BindError::Unix { path: path.clone(), source };
    let folder = fs::metadata(path.folder()).map_err(failed)?;
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&folder.uid()) || folder.mode() & OTHERS_WRITE != 0 {
        return Err(BindError::UnixFolder { path: path.clone() });
    }
    Ok(())
}

/// Takes the lock beside the socket. It is of two processes of which neither listens yet, too.
fn lock(path: &SocketPath) -> Result<File, BindError> {
    let failed = |source| BindError::Unix { path: path.clone(), source };
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(LOCK_MODE);
    let lock = options.open(format!("{path}.lock")).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let pid = match listening(Path::new(path.as_str())) {
                Ok(Listening::Yes { pid }) => pid,
                _ => None,
            };
            Err(BindError::UnixInUse { path: path.clone(), pid })
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Whether a process listens on a socket.
enum Listening {
    No,
    Yes {
        /// Which, if the kernel names it: not of another namespace, nor with a full backlog.
        pid: Option<u32>,
    },
}

/// Never waits: a process that accepts nothing may have a full backlog.
fn listening(at: &Path) -> io::Result<Listening> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(at)?) {
        Ok(()) => {
            let stream = UnixStream::from_std(OwnedFd::from(socket).into())?;
            let pid = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
            Ok(Listening::Yes { pid: pid.filter(|pid| *pid != 0) })
        }
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => Ok(Listening::No),
            io::ErrorKind::WouldBlock => Ok(Listening::Yes { pid: None }),
            _ => Err(error),
        },
    }
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}
