//! A Unix socket that a listener has beside its TCP port: for clients of the same machine, which
//! the kernel names.
//!
//! The kernel's stream sockets are read, written and shut down alike. So a link over a Unix socket
//! is a `TcpStream` over its descriptor, without the options of TCP, and no other code knows it.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};

use longshore_protocol::SocketPath;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use crate::listener::{BACKLOG, BindError};

/// The address of the other side, in logs and for limits: this machine, without a port.
pub(crate) const LOCAL_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Its owner and its group may connect.
const MODE: u32 = 0o660;

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
    /// Listens at `path`, in place of a socket on which nobody listens.
    pub(crate) fn bind(path: &SocketPath) -> Result<UnixSocket, BindError> {
        let failed = |source| BindError::Unix { path: path.clone(), source };
        let at = Path::new(path.as_str());
        if let Ok(found) = fs::symlink_metadata(at) {
            let is_socket = found.file_type().is_socket();
            let in_use = |why| Err(BindError::UnixInUse { path: path.clone(), why });
            if !is_socket {
                return in_use("is not a socket");
            }
            match std::os::unix::net::UnixStream::connect(at) {
                Ok(_) => return in_use("belongs to a process that listens on it"),
                // Nobody listens. Any other error leaves that open.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(failed(error)),
            }
            fs::remove_file(at).map_err(failed)?;
        }
        let bind = || -> io::Result<UnixSocket> {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(at)?)?;
            let file = SocketFile { path: at.to_owned(), id: file_id(at)? };
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

/// Connects to the socket at `path`.
pub(crate) async fn connect(path: &SocketPath) -> io::Result<TcpStream> {
    as_tcp(UnixStream::connect(path.as_str()).await?)
}

fn as_tcp(stream: UnixStream) -> io::Result<TcpStream> {
    TcpStream::from_std(std::net::TcpStream::from(OwnedFd::from(stream.into_std()?)))
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}
