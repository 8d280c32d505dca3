//! Opening: what is there is ours and whole, or the store is not opened. No data is ever deleted; of what is
//! there, only a snapshot that sled has not finished is moved, see [`set_aside`].

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use fs2::FileExt;

use super::config::SledConfig;
use super::disk::{Batch, Disk, SledDisk, guarded, io_cause};
use super::journal::{self, Journal, Noted};
use super::record::{self, State};
use super::shared::{Fences, MAX_EPOCH, Shared};
use super::table::{Counts, Entry, Table};
use super::writer::Writer;
use crate::claim::Phase;
use crate::error::{StoreError, StoreErrorKind};
use crate::id::{DedupKey, Scope};
use crate::store::StoreTime;

/// There from before sled makes its first file until the store's own first batch is durable: a store whose
/// making was cut off holds nothing yet and may be made again; any other one without a format is damaged.
const BEING_MADE: &str = "einmal.creating";

/// What the names of files begin with that are set aside: sled looks at none of them.
const ASIDE: &str = "einmal.aside.";

/// How often, and how long apart, a lock is tried: another handle of this process may just be closing.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// sled keeps a page of more than a quarter of a segment in a file of its own, which it never syncs. A page
/// has at most 17 entries; with ours, of at most 9 KiB, this keeps every page in the one file that we sync.
const SEGMENT: usize = 1 << 20;

/// Opens the store and makes its writer. Blocks; sled may panic on damaged files, and on a thread of its own
/// nothing else is harmed by that.
pub(super) fn open(
    config: SledConfig,
    wrap: impl FnOnce(SledDisk) -> Arc<dyn Disk>,
) -> Result<Writer, StoreError> {
    let path = config.path.clone();
    let failed = |kind, what: &str| StoreError::new(kind, format!("the store {}: {what}", path.display()));
    let io = |what: &'static str| {
        let path = path.clone();
        move |error: io::Error| {
            let message = format!("the store {}: {what} ({error})", path.display());
            StoreError::new(StoreErrorKind::Unavailable, message).with_source(error)
        }
    };
    let being_made = prepare(&path).map_err(io("its directory can't be made or read"))?;
    let Some(being_made) = being_made else {
        let what = "the directory has files but no sled database";
        return Err(failed(StoreErrorKind::Corrupt, what));
    };
    let db = open_sled(&config)?;
    let file = File::options().read(true).write(true).open(path.join("db"));
    let file = file.map_err(io("sled's file is not where it should be"))?;
    let probe = config.probe.clone();
    let disk = SledDisk { db, file, durability: config.durability, probe };

    let mut state = match read_state(&disk).map_err(|e| failed(e.kind(), "can't be read").with_source(e))? {
        Found::Ours(state) => state,
        Found::Nothing if being_made => State::default(),
        Found::Nothing => {
            return Err(failed(StoreErrorKind::Corrupt, "the database has no format of ours"));
        }
        Found::Other => {
            return Err(failed(StoreErrorKind::Corrupt, "the database has a format that is not known here"));
        }
    };
    let counts = read_counts(&disk)?
        .ok_or_else(|| failed(StoreErrorKind::Corrupt, "the number of its keys can't be read"))?;
    let (journal, noted) = Journal::open(&path, being_made)?;
    if noted.batch > state.batch {
        let what = format!("batch {} was durable, and the last one is {}", noted.batch, state.batch);
        return Err(failed(StoreErrorKind::Corrupt, &what));
    }
    if state.epoch >= MAX_EPOCH {
        return Err(failed(StoreErrorKind::Misuse, "opened 2^24 times: its fences are used up"));
    }

    let time = if state.epoch == 0 {
        StoreTime::begin(Arc::clone(&config.clock))
    } else {
        StoreTime::resume(Arc::clone(&config.clock), state.mark)
    };
    state = State { epoch: state.epoch + 1, batch: state.batch + 1, mark: time.mark() };
    let first = Batch::from([
        (record::FORMAT_KEY.to_vec(), Some(vec![record::FORMAT])),
        (record::STATE_KEY.to_vec(), Some(record::encode(&state)?)),
    ]);
    let begun = disk.apply(&first).and_then(|()| disk.sync());
    begun.map_err(|e| failed(e.kind(), "its first batch can't be written").with_source(e))?;
    // Whatever the durability: fences must not come back, and what an earlier process wrote but died before
    // syncing is about to be read as durable.
    disk.file.sync_data().map_err(io("its file can't be synced"))?;
    journal
        .note_batch(state.batch)
        .and_then(|()| journal.sync())
        .map_err(io("its notes can't be written"))?;
    if being_made {
        finish(&path).map_err(io("its directory can't be synced"))?;
    }

    let in_memory = counts.iter().map(|(scope, count)| (scope.clone(), usize::try_from(*count).unwrap_or(0)));
    let disk = wrap(disk);
    let shared = Shared {
        counts: Counts::new(config.max_keys, config.max_keys_per_scope, in_memory.collect()),
        table: Table::new(),
        journal,
        time,
        fences: Fences::of(state.epoch),
        disk: RwLock::new(Some(Arc::clone(&disk))),
        ended: OnceLock::new(),
        config,
    };
    take_over(&shared, noted)?;
    let lists = state.epoch << 40;
    Ok(Writer { shared: Arc::new(shared), disk, state, counts, appended: HashMap::new(), lists })
}

/// Makes the directory if need be. `Some(true)` when the store is to be made in it, `None` when something
/// else is there.
fn prepare(path: &Path) -> io::Result<Option<bool>> {
    fs::create_dir_all(path)?;
    let mut others = false;
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        // The last one is what a new volume has at its root.
        others |= name != BEING_MADE && name != journal::FILE_NAME && name != "lost+found";
    }
    if path.join(BEING_MADE).try_exists()? {
        return Ok(Some(true));
    }
    if others || path.join(journal::FILE_NAME).try_exists()? {
        let whole = path.join("db").is_file() && path.join("conf").is_file();
        return Ok(whole.then_some(false));
    }
    File::create_new(path.join(BEING_MADE))?.sync_all()?;
    sync_directory(path)?;
    Ok(Some(true))
}

/// The store's first batch is durable: so are the files' names from now on.
fn finish(path: &Path) -> io::Result<()> {
    sync_directory(path)?;
    if let Some(parent) = path.canonicalize()?.parent() {
        sync_directory(parent)?;
    }
    fs::remove_file(path.join(BEING_MADE))?;
    sync_directory(path)
}

#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Other systems have no handle of a directory to sync.
#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

fn open_sled(config: &SledConfig) -> Result<sled::Db, StoreError> {
    let path = &config.path;
    // sled's own flusher only logs its failures, and then stops for good.
    let settings = sled::Config::new()
        .path(path)
        .cache_capacity(config.cache_bytes)
        .segment_size(SEGMENT)
        .flush_every_ms(None);
    let (mut tries, mut moved) = (0, false);
    loop {
        let mut locked = false;
        let opened = guarded(|| {
            Ok(settings.open().inspect_err(|error| {
                locked = matches!(error, sled::Error::Io(io) if io.to_string().contains("acquire lock"));
            })?)
        });
        let error = match opened {
            Ok(db) => return Ok(db),
            Err(error) => error,
        };
        let kind = match error.kind() {
            StoreErrorKind::Unavailable if is_io(&error) => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Corrupt,
        };
        if !locked && !moved && kind == StoreErrorKind::Corrupt {
            match set_aside(path) {
                Ok(true) => {
                    moved = true;
                    continue;
                }
                Ok(false) => {}
                // Somebody has opened it meanwhile: look again.
                Err(error) if is_contended(&error) => locked = true,
                Err(error) => tracing::warn!(path = %path.display(), %error, "nothing could be set aside"),
            }
        }
        if !locked {
            let why = io_cause(&error);
            let message = format!("the store {}: sled can't open its files{why}", path.display());
            return Err(StoreError::new(kind, message).with_source(error));
        }
        if tries >= LOCK_TRIES {
            let message = format!("the store {} is open elsewhere", path.display());
            return Err(StoreError::new(StoreErrorKind::Locked, message).with_source(error));
        }
        tries += 1;
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// Takes snapshots that sled has not finished out of its sight, and says whether there was one.
///
/// sled makes a snapshot when it opens, in a file that it gives its real name once it is synced. One that was
/// cut short counts as a snapshot all the same, so that sled never opens again, though it needs none of them:
/// all that they say is in its log.
fn set_aside(path: &Path) -> io::Result<bool> {
    // sled has let go of its lock by now, and may have failed before it had it. Whoever has it may be
    // writing just such a file.
    let lock = File::options().read(true).write(true).open(path.join("db"))?;
    lock.try_lock_exclusive()?;
    let mut moved = false;
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if !text.starts_with("snap.") || !text.ends_with(".generating") {
            continue;
        }
        // An older one of that name is replaced: sled tried to write the same thing.
        let aside = format!("{ASIDE}{text}");
        fs::rename(path.join(&name), path.join(&aside))?;
        tracing::warn!(path = %path.display(), %aside, "set aside a snapshot that sled has not finished");
        moved = true;
    }
    Ok(moved)
}

fn is_contended(error: &io::Error) -> bool {
    error.raw_os_error() == fs2::lock_contended_error().raw_os_error()
}

/// The disk failed, rather than what is on it. A file that ends too early is damaged.
fn is_io(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sled::Error>());
    matches!(source, Some(sled::Error::Io(io)) if io.kind() != io::ErrorKind::UnexpectedEof)
}

enum Found {
    Nothing,
    Ours(State),
    Other,
}

fn read_state(disk: &SledDisk) -> Result<Found, StoreError> {
    let format = disk.get(record::FORMAT_KEY)?;
    let state = disk.get(record::STATE_KEY)?;
    Ok(match (format.as_deref(), state) {
        (Some([record::FORMAT]), Some(state)) => record::decode(&state).map_or(Found::Other, Found::Ours),
        (None, None) if disk.scan(&[], &[], 1)?.is_empty() => Found::Nothing,
        _ => Found::Other,
    })
}

/// How many records each scope has; `None` when that can't be decoded.
fn read_counts(disk: &SledDisk) -> Result<Option<HashMap<Scope, u64>>, StoreError> {
    const PAGE: usize = 1000;
    let (mut counts, mut after) = (HashMap::new(), Vec::new());
    loop {
        let page = disk.scan(&[record::COUNT], &after, PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(Some(counts)) };
        after = last.to_vec();
        for (key, value) in page {
            let Some(scope) = key.get(1..).and_then(scope_of) else { return Ok(None) };
            let Some(count) = record::decode(&value) else { return Ok(None) };
            counts.insert(scope, count);
        }
    }
}

fn scope_of(bytes: &[u8]) -> Option<Scope> {
    Scope::stored(std::str::from_utf8(bytes).ok()?)
}

/// Takes in what the process before left running: its claims have lapsed, since the lock shows it to be gone.
fn take_over(shared: &Shared, noted: Noted) -> Result<(), StoreError> {
    let now = shared.time.now();
    for (slot, key, mut record) in noted.started {
        let on_disk = match shared.read(&key) {
            Ok(on_disk) => on_disk,
            // The record is left alone, and so is the note.
            Err(error) if error.kind() == StoreErrorKind::Undecodable => continue,
            Err(error) => return Err(error),
        };
        let ended = on_disk.as_ref().is_some_and(|known| known.fence >= record.fence);
        if let Phase::InProgress { lease_until, .. } = &mut record.phase {
            *lease_until = now.min(*lease_until);
        }
        let known = shared.table.lock(&key).get(&key).map(|entry| entry.record.fence);
        if ended || record.is_expired(now) || known.is_some_and(|fence| fence >= record.fence) {
            shared.journal.clear(slot);
            continue;
        }
        adopt(shared, key, Entry { record, on_disk: on_disk.is_some(), slot: Some(slot), write: None });
    }
    Ok(())
}

fn adopt(shared: &Shared, key: DedupKey, entry: Entry) {
    let is_new = !entry.on_disk;
    let before = shared.table.lock(&key).insert(key.clone(), entry);
    match before.and_then(|before| before.slot) {
        Some(older) => shared.journal.clear(older),
        // Over a bound that was lowered meanwhile it is kept all the same, and not counted.
        None if is_new => {
            let _ = shared.counts.add(key.scope());
        }
        None => {}
    }
}
