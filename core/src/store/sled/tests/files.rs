//! Opening what is locked, damaged, cut off or not ours.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;

use super::*;

async fn fill(path: &Path, keys: std::ops::Range<usize>) {
    let store = open(path).await;
    for id in keys {
        complete(&store, id).await;
    }
    store.close().await.unwrap();
}

async fn error(path: &Path) -> StoreError {
    let error = SledStore::open(SledConfig::new(path).unwrap()).await.unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    error
}

fn files(path: &Path) -> BTreeMap<std::ffi::OsString, u64> {
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().len())).collect()
}

#[tokio::test]
async fn a_second_handle_gets_locked_and_a_dropped_one_gives_way() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let begun = SystemClock.monotonic();
    assert_eq!(error(dir.path()).await.kind(), StoreErrorKind::Locked);
    let took = SystemClock.monotonic() - begun;
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(5), "{took:?}");
    complete(&store, "1").await;
    drop(store);
    let store = open(dir.path()).await;
    assert!(is_completed(&store, &key("1")).await);
    let again = store.clone();
    store.close().await.unwrap();
    again.close().await.unwrap();
    SledStore::open_blocking(SledConfig::new(dir.path()).unwrap()).unwrap();
}

#[tokio::test]
async fn what_is_not_ours_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    assert_eq!(error(dir.path()).await.kind(), StoreErrorKind::Corrupt);
    assert_eq!(files(dir.path()).len(), 1);

    let dir = tempfile::tempdir().unwrap();
    let foreign = sled::open(dir.path()).unwrap();
    foreign.insert("x", "y").unwrap();
    foreign.flush().unwrap();
    drop(foreign);
    assert_eq!(error(dir.path()).await.kind(), StoreErrorKind::Corrupt);

    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(error(file.path()).await.kind(), StoreErrorKind::Unavailable);
}

#[tokio::test]
async fn an_unknown_format_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let later = Batch::from([(record::FORMAT_KEY.to_vec(), Some(vec![2]))]);
    store.handle.shared.disk().unwrap().apply(&later).unwrap();
    store.close().await.unwrap();
    assert_eq!(error(dir.path()).await.kind(), StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn a_store_whose_making_was_cut_off_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    fs::write(dir.path().join("einmal.creating"), "").unwrap();
    fs::create_dir(dir.path().join("blobs")).unwrap();
    let store = open(dir.path()).await;
    complete(&store, "1").await;
    store.close().await.unwrap();
    assert!(!dir.path().join("einmal.creating").exists());
}

/// A store that was opened twice, so that sled has made a snapshot.
async fn twice_opened(path: &Path, keys: usize) {
    fill(path, 0..keys / 2).await;
    fill(path, keys / 2..keys).await;
}

/// What the files that begin with `prefix` hold.
fn contents(path: &Path, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let names = files(path).into_keys().map(|name| name.into_string().unwrap());
    let ours = names.filter(|name| name.starts_with(prefix));
    ours.map(|name| (name.clone(), fs::read(path.join(name)).unwrap())).collect()
}

/// sled's temporary file, left behind by a kill or a full disk, counts as a snapshot when it opens again.
#[tokio::test]
async fn a_snapshot_that_was_not_finished_is_set_aside() {
    const KEYS: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    twice_opened(path, KEYS).await;
    let (snapshot, whole) = contents(path, "snap.").pop_last().unwrap();
    let later = "snap.0FFFFFFFFFFFFFFF.generating".to_owned();
    let half = whole[..whole.len() / 2].to_vec();
    let left = [Vec::new(), half, whole[..whole.len() - 1].to_vec(), vec![0; 4096], vec![0xa5; 4096]];
    for name in [format!("{snapshot}.generating"), later] {
        for content in &left {
            // sled takes its old snapshots away when it makes a new one.
            for newer in contents(path, "snap.").into_keys().filter(|newer| *newer != snapshot) {
                fs::remove_file(path.join(newer)).unwrap();
            }
            fs::write(path.join(&snapshot), &whole).unwrap();
            fs::write(path.join(&name), content).unwrap();
            let store = open(path).await;
            assert_eq!(store.stats().await.unwrap().keys, KEYS as u64);
            for id in 0..KEYS {
                assert!(is_completed(&store, &key(id)).await, "{name}: {id}");
            }
            store.close().await.unwrap();
            assert!(!path.join(&name).exists());
            let aside = format!("einmal.aside.{name}");
            assert_eq!(&contents(path, "einmal.aside.")[&aside], content, "it is kept");
        }
    }
    assert_eq!(contents(path, "einmal.aside.").len(), 2, "a later one of the same name replaces it");
}

#[tokio::test]
async fn an_unfinished_snapshot_of_whoever_has_the_store_open_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let name = "snap.0FFFFFFFFFFFFFFF.generating";
    fs::write(dir.path().join(name), "half of").unwrap();
    assert_eq!(error(dir.path()).await.kind(), StoreErrorKind::Locked);
    // sled reads this file before it has the lock.
    let conf = fs::read(dir.path().join("conf")).unwrap();
    fs::write(dir.path().join("conf"), vec![0xa5; conf.len()]).unwrap();
    assert_eq!(error(dir.path()).await.kind(), StoreErrorKind::Locked);
    fs::write(dir.path().join("conf"), conf).unwrap();
    assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"half of");
    store.close().await.unwrap();
    drop(store);
    open(dir.path()).await;
    assert!(dir.path().join(format!("einmal.aside.{name}")).exists());
}

#[tokio::test]
async fn without_its_notes_the_store_opens_only_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().join("einmal.started");
    fill(dir.path(), 0..3).await;
    let ours = fs::read(&notes).unwrap();
    for other in [Some(vec![0; ours.len()]), Some(b"garbage".to_vec()), None] {
        match &other {
            Some(other) => fs::write(&notes, other).unwrap(),
            None => fs::remove_file(&notes).unwrap(),
        }
        for _ in 0..2 {
            let error = error(dir.path()).await;
            assert_eq!(error.kind(), StoreErrorKind::Corrupt);
            assert!(error.to_string().contains("einmal.started"), "{error}");
        }
        assert_eq!(fs::read(&notes).ok(), other, "nothing was changed");
    }
    fs::write(&notes, &ours).unwrap();
    fill(dir.path(), 3..4).await;
    fs::write(&notes, "").unwrap();
    fill(dir.path(), 4..5).await;
    let store = open(dir.path()).await;
    for id in 0..5 {
        assert!(is_completed(&store, &key(id)).await, "{id}");
    }
}

#[tokio::test]
async fn a_database_older_than_its_notes_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), 0..3).await;
    let notes = dir.path().join("einmal.started");
    let mut bytes = fs::read(&notes).unwrap();
    bytes[8..16].copy_from_slice(&1000u64.to_be_bytes());
    fs::write(&notes, &bytes).unwrap();
    let error = error(dir.path()).await;
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("batch 1000 was durable"), "{error}");
    assert_eq!(fs::read(&notes).unwrap(), bytes);
}

/// Whatever is done to the files: a typed error and nothing gone, or a store with every key.
#[tokio::test]
async fn damaged_files_are_an_error_or_lose_nothing() {
    const KEYS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    // sled makes its snapshot when it reads its log: of the first half of it.
    twice_opened(&whole, KEYS).await;
    let snapshots = files(&whole).into_keys().filter(|name| name.to_str().unwrap().starts_with("snap."));
    let mut names: Vec<_> = snapshots.map(|name| name.into_string().unwrap()).collect();
    assert!(!names.is_empty());
    names.extend(["db", "conf"].map(str::to_owned));
    let mut errors = 0;
    for name in names {
        for damage in 0..13 {
            let path = dir.path().join(format!("{name}-{damage}"));
            fs::create_dir(&path).unwrap();
            fs::create_dir(path.join("blobs")).unwrap();
            for (file, _) in files(&whole).into_iter().filter(|(file, _)| file != "blobs") {
                fs::copy(whole.join(&file), path.join(&file)).unwrap();
            }
            let mut bytes = fs::read(path.join(&name)).unwrap();
            // sled's file goes on with zeroes to the end of its segment.
            let len = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            match damage {
                0 => bytes.clear(),
                1 => bytes.truncate(len / 2),
                2 => bytes.truncate(len - 1),
                3 => bytes.fill(0),
                4 => bytes.fill(0xa5),
                5 => bytes[len / 2..].fill(0x5a),
                7 => bytes[len - 1] ^= 1,
                8 => bytes[len / 4] ^= 1,
                9 => bytes[len * 3 / 4] ^= 1,
                10 => bytes.truncate(len / 4),
                11 => bytes.truncate(len * 9 / 10),
                12 => bytes[len * 9 / 10..].fill(0),
                _ => bytes.iter_mut().step_by(97).for_each(|byte| *byte ^= 0xff),
            }
            fs::write(path.join(&name), bytes).unwrap();
            match SledStore::open(SledConfig::new(&path).unwrap()).await {
                Err(error) => {
                    errors += 1;
                    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{name} {damage}: {error:?}");
                    // sled makes its snapshot anew when it can; its data stay, and so does the error.
                    let after = files(&path);
                    assert!(["db", "conf"].iter().all(|file| after.contains_key(OsStr::new(file))));
                    let again = SledStore::open(SledConfig::new(&path).unwrap()).await.unwrap_err();
                    assert_eq!(again.kind(), StoreErrorKind::Corrupt, "{name} {damage}: {again:?}");
                }
                Ok(store) => {
                    for id in 0..KEYS {
                        match store.claim(request(&key(id))).await {
                            Ok(ClaimAnswer::Completed(_)) => {}
                            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Corrupt),
                            Ok(other) => panic!("{name} {damage}: key {id} was forgotten: {other:?}"),
                        }
                    }
                }
            }
        }
    }
    assert!(errors >= 6, "{errors}");
}
