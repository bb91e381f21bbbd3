//! Shifts the clocks of other processes.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::servers::{Directory, built, find_program};

const SOURCE: &str = include_str!("clock_shim/clock_shim.c");
const SHIFTS: &str = "shifts";

/// A clock that can be shifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShiftedClock {
    /// CLOCK_REALTIME, `gettimeofday`, `time`: the clock by which Redis measures TTLs.
    Wall,
    /// CLOCK_MONOTONIC. The kernel does not know of the shift, so a thread that sleeps until a moment of this clock
    /// sleeps longer or shorter by the shift.
    Monotonic,
    /// CLOCK_BOOTTIME: the clock by which distlock measures deadlines. Shifting it alone simulates a suspended
    /// machine.
    Boot,
}

impl ShiftedClock {
    const ALL: [ShiftedClock; 3] = [ShiftedClock::Wall, ShiftedClock::Monotonic, ShiftedClock::Boot];

    /// Returns the offset of the clock's shift in the file.
    fn offset(self) -> u64 {
        8 * self as u64
    }
}

/// Shifts the clocks of running processes that were started with its [`environment`](Self::environment).
///
/// It uses LD_PRELOAD, so it does not affect programs that call the kernel without the C library, as all Go programs
/// do, including etcd. Clones shift the same clocks.
#[derive(Debug, Clone)]
pub struct ClockShim {
    library: PathBuf,
    directory: Arc<Directory>,
    shifts: Arc<File>,
}

impl ClockShim {
    /// Returns a shim without any shift. Compiles the library if it does not exist yet.
    #[track_caller]
    pub fn new() -> ClockShim {
        let mut hasher = DefaultHasher::new();
        SOURCE.hash(&mut hasher);
        // The name contains a hash of the source, so that an outdated library is never loaded.
        let library = built(&format!("clock-shim-{:016x}", hasher.finish()), "clock_shim.so", compile);
        let directory = Arc::new(Directory::new());
        let file = directory.write(SHIFTS, [0; 24]);
        let shifts = Arc::new(File::options().read(true).write(true).open(file).expect("the file just written"));
        ClockShim { library, directory, shifts }
    }

    /// The variables that load the shim into a process.
    pub fn environment(&self) -> [(String, String); 2] {
        let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        let shifts = self.directory.path().join(SHIFTS);
        [("LD_PRELOAD".into(), text(&self.library)), ("DISTLOCK_CLOCK_SHIFTS".into(), text(&shifts))]
    }

    /// Moves a clock forward, in addition to earlier shifts.
    pub fn forward(&self, clock: ShiftedClock, by: Duration) {
        self.set(clock, self.shift_nanos(clock) + nanos(by));
    }

    /// Moves a clock back, in addition to earlier shifts.
    pub fn back(&self, clock: ShiftedClock, by: Duration) {
        self.set(clock, self.shift_nanos(clock) - nanos(by));
    }

    /// Sets all clocks to the true time again.
    pub fn reset(&self) {
        ShiftedClock::ALL.into_iter().for_each(|clock| self.set(clock, 0));
    }

    /// Returns by how many nanoseconds a clock is ahead of the true time.
    pub fn shift_nanos(&self, clock: ShiftedClock) -> i64 {
        let mut bytes = [0; 8];
        self.shifts.read_exact_at(&mut bytes, clock.offset()).expect("three numbers");
        i64::from_ne_bytes(bytes)
    }

    fn set(&self, clock: ShiftedClock, nanos: i64) {
        // One write of eight aligned bytes, so that a reader never sees half of a value.
        self.shifts.write_all_at(&nanos.to_ne_bytes(), clock.offset()).expect("the file can be written");
    }
}

impl Default for ClockShim {
    fn default() -> Self {
        ClockShim::new()
    }
}

fn nanos(by: Duration) -> i64 {
    i64::try_from(by.as_nanos()).expect("less than 292 years")
}

fn compile(directory: &Path) {
    let source = directory.join("clock_shim.c");
    std::fs::write(&source, SOURCE).expect("the target directory can be written");
    let mut gcc = Command::new(find_program("gcc", "gcc libc6-dev"));
    gcc.args(["-O2", "-shared", "-fPIC", "-o"]);
    let output = gcc.arg(directory.join("clock_shim.so")).arg(source).output().expect("gcc runs");
    assert!(output.status.success(), "{gcc:?}: {}", String::from_utf8_lossy(&output.stderr));
}
