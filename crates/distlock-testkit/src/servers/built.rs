//! Things that the kit builds or downloads once, and keeps beside the compiled tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Returns the path of `name` in cargo's target directory, built by `make` if it does not exist yet.
///
/// `make` gets an empty directory and must create `inside` there. Only one test process builds it at a time, and the
/// others never see it half done.
pub(crate) fn built(name: &str, inside: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let parent = target_directory().join("testkit");
    fs::create_dir_all(&parent).expect("the target directory can be written");
    let (finished, unfinished) = (parent.join(name), parent.join(format!("{name}.unfinished")));
    let lock = File::create(parent.join(format!("{name}.lock"))).expect("the target directory can be written");
    lock.lock().expect("a file can be locked");
    if !finished.join(inside).exists() {
        let _ = fs::remove_dir_all(&unfinished);
        let _ = fs::remove_dir_all(&finished);
        fs::create_dir(&unfinished).expect("the target directory can be written");
        make(&unfinished);
        assert!(unfinished.join(inside).exists(), "{name} was made without {inside}");
        fs::rename(&unfinished, &finished).expect("nothing stands in its way");
    }
    finished.join(inside)
}

fn target_directory() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(default, PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_built_once() {
        let name = format!("made-once-{}", std::process::id());
        let path = built(&name, "thing", |directory| fs::write(directory.join("thing"), "1").unwrap());
        let again = built(&name, "thing", |_| panic!("it is there"));
        assert_eq!((again, fs::read_to_string(&path).unwrap()), (path.clone(), "1".to_owned()));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        fs::remove_file(target_directory().join(format!("testkit/{name}.lock"))).unwrap();
    }
}
