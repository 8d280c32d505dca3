//! A file that outgrows a sitting should be split.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const WARN_ABOVE: usize = 400;
const FAIL_ABOVE: usize = 600;

#[derive(Debug, PartialEq, Eq)]
enum Length {
    Fine,
    Long,
    TooLong,
}

pub(super) fn run(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    rust_files(root, &mut files)?;
    files.sort();

    let mut too_long = 0_usize;
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let lines = text.lines().count();
        let shown = file.strip_prefix(root).unwrap_or(file).display();
        match judge(lines) {
            Length::Fine => {}
            Length::Long => eprintln!("warning: {shown} has {lines} lines, over {WARN_ABOVE}"),
            Length::TooLong => {
                eprintln!("error: {shown} has {lines} lines, over {FAIL_ABOVE}");
                too_long += 1;
            }
        }
    }
    if too_long > 0 {
        bail!("{too_long} of {} files are too long", files.len());
    }
    Ok(())
}

fn judge(lines: usize) -> Length {
    if lines > FAIL_ABOVE {
        Length::TooLong
    } else if lines > WARN_ABOVE {
        Length::Long
    } else {
        Length::Fine
    }
}

/// Walks the folders, and does not ask git: an exported tree is checked as well.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_symlink() || hidden {
            continue;
        }
        if path.is_dir() {
            // Cargo marks its target folder so, whatever its name.
            if !path.join("CACHEDIR.TAG").exists() {
                rust_files(&path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_at_the_bounds() {
        assert_eq!(judge(0), Length::Fine);
        assert_eq!(judge(400), Length::Fine);
        assert_eq!(judge(401), Length::Long);
        assert_eq!(judge(600), Length::Long);
        assert_eq!(judge(601), Length::TooLong);
    }

    #[test]
    fn finds_sources_and_leaves_built_files_alone() {
        let root = tempfile::tempdir().unwrap();
        for name in ["core/src/lib.rs", "out/made.rs", ".hidden/a.rs", "core/notes.md"] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "\n").unwrap();
        }
        fs::write(root.path().join("out/CACHEDIR.TAG"), "").unwrap();

        let mut found = Vec::new();
        rust_files(root.path(), &mut found).unwrap();
        assert_eq!(found, [root.path().join("core/src/lib.rs")]);
    }

    #[test]
    fn a_file_that_is_too_long_fails() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("lib.rs");
        fs::write(&file, "\n".repeat(600)).unwrap();
        run(root.path()).unwrap();
        fs::write(&file, "\n".repeat(601)).unwrap();
        run(root.path()).unwrap_err();
    }
}
