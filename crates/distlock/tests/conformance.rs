//! Every case of the conformance suite on every set-up.

use distlock_testkit::MemorySetup;

distlock_testkit::conformance! {
    memory: MemorySetup,
}
