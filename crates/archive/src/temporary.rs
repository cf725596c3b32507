//! Files and folders under temporary names beside their place, and what killed programs left of
//! them.
//!
//! Whoever makes one holds a lock on it, which the system takes away with the process. So one that
//! can be locked was left by a program that was killed, and goes away when the next file is
//! written into its folder. Where the system has no such locks nothing is taken away.

use std::fs::File;
use std::io;
use std::path::Path;

use tempfile::Builder;

const PREFIX: &str = ".hankelite-";
const SUFFIX: &str = ".part";

/// A temporary file or folder, and the lock on it.
pub(crate) type Claimed<T> = (T, Option<File>);

/// Makes one in a folder, with these permissions before the user's umask takes what it takes from
/// anything new; the crate's default would keep it from everybody else.
pub(crate) fn claimed<T: AsRef<Path>>(
    folder: &Path,
    mode: u32,
    make: impl Fn(&Builder<'_, '_>, &Path) -> io::Result<T>,
) -> io::Result<Claimed<T>> {
    sweep(folder);
    let mut builder = Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    loop {
        let made = make(&builder, folder)?;
        let lock = lock(made.as_ref());
        // Another program may have taken it away before it was locked.
        if made.as_ref().exists() {
            return Ok((made, lock));
        }
    }
}

/// Waits for the lock on a file or folder; `None` where the system has none.
pub(crate) fn lock(path: &Path) -> Option<File> {
    // Elsewhere a lock would keep the file from being read under its other name.
    let file = File::open(path).ok().filter(|_| cfg!(unix))?;
    file.lock().ok()?;
    Some(file)
}

/// Whether the name is one that this crate gives to a file that is being written, or was left by
/// a program that was killed.
#[must_use]
pub fn is_temporary(path: impl AsRef<Path>) -> bool {
    let name = path.as_ref().file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
}

/// Removes what killed programs left in a folder, as far as that goes.
pub(crate) fn sweep(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_temporary(entry.file_name())) {
        let (path, kind) = (entry.path(), entry.file_type());
        let is_dir = kind.as_ref().is_ok_and(std::fs::FileType::is_dir);
        if !is_dir && !kind.is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let file = File::open(&path).ok().filter(|_| cfg!(unix));
        // Held until it is gone, for whoever has just made it.
        let left = file.filter(|file| file.try_lock().is_ok());
        let _best_effort = match is_dir {
            _ if left.is_none() => continue,
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_goes_and_what_is_being_written_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = || {
            claimed(folder.path(), 0o666, |builder: &Builder<'_, '_>, folder| {
                builder.tempfile_in(folder)
            })
        };
        let (mine, lock) = file().unwrap();
        assert!(lock.is_some());
        std::fs::write(folder.path().join(".hankelite-left.part"), b"left").unwrap();
        std::fs::create_dir_all(folder.path().join(".hankelite-old.part/in")).unwrap();
        std::fs::write(folder.path().join("another.part"), b"other").unwrap();
        let (other, _lock) = file().unwrap();
        assert!(mine.path().exists() && other.path().exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
