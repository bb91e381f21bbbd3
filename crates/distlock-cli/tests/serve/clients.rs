//! The Python and Node clients.

use std::path::Path;
use std::process::Stdio;

use distlock_testkit::servers::Directory;

use crate::kit::{Daemon, Engine, Language, Process, clean, clients};

fn assert_client_works(engine: &Engine) {
    let daemon = Daemon::start(&engine.url);
    for language in [Language::Python, Language::Node] {
        let run = |command: &str, name: &str| {
            let output = Process::start(&mut language.program(&[command, &daemon.address(), name])).output();
            assert_eq!(output.trim(), "good", "{language:?} {command}");
        };
        run("basics", "a/b c:é");
        if !engine.url.starts_with("file") {
            run("readers", "r");
        }
    }
    assert_eq!(daemon.metric("distlock_serve_holds"), 0, "everything is released");
    assert_eq!(daemon.metric("distlock_serve_streams"), 0);
}

#[test]
fn the_clients_lock_on_redis() {
    assert_client_works(&Engine::redis());
}

#[test]
fn the_clients_lock_on_etcd() {
    assert_client_works(&Engine::etcd());
}

#[test]
fn the_clients_lock_on_files() {
    assert_client_works(&Engine::files());
}

#[test]
fn two_hundred_python_processes_increment_a_counter() {
    let engine = Engine::redis();
    let daemon = Daemon::start(&engine.url);
    let directory = Directory::new();
    let counter = directory.write("counter", "0 0");
    let words = ["count", &daemon.address(), "counter", counter.to_str().unwrap(), "200", "1"];
    assert_eq!(Process::start(&mut Language::Python.program(&words)).output().trim(), "good");
    let text = std::fs::read_to_string(&counter).unwrap();
    assert_eq!(text.split(' ').next(), Some("200"), "{text}");
    assert_eq!(daemon.metric("distlock_serve_holds"), 0);
}

#[test]
fn the_python_client_installs_with_pip_and_needs_nothing_else() {
    let directory = Directory::new();
    let source = directory.path().join("source");
    // pip writes into the folder that it builds.
    let copied = clean("cp").arg("-r").arg(clients().join("python")).arg(&source).status().unwrap();
    assert!(copied.success());
    let target = directory.path().join("target");
    let mut pip = clean("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]);
    let output = pip.arg(&target).arg(&source).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let program = "import distlock, pathlib; print(distlock.__file__); assert distlock.Client('/nowhere')";
    let mut python = clean("python3");
    python.args(["-I", "-S", "-c"]);
    python.arg(format!("import sys; sys.path.insert(0, {:?}); {program}", target.display().to_string()));
    let output = python.output().unwrap();
    let (said, problem) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && Path::new(said.trim()).starts_with(&target), "{said}{problem}");
    assert!(target.join("distlock/py.typed").exists(), "typed");
}

#[test]
fn the_programs_of_the_documentation_run() {
    let page = std::fs::read_to_string(clients().join("../docs/serve.md")).unwrap();
    let engine = Engine::redis();
    let daemon = Daemon::start(&engine.url);
    let mut programs = 0;
    for (fence, program, flag) in [("```python\n", "python3", "-c"), ("```js\n", "node", "--input-type=module")] {
        for block in page.split(fence).skip(1).map(|rest| rest.split("```").next().unwrap()) {
            // Readers have it installed under its name.
            let url = format!("file://{}", clients().join("node/index.mjs").canonicalize().unwrap().display());
            let text = block.replace("from \"distlock\"", &format!("from {url:?}"));
            let mut command = clean(program);
            command.arg(flag).env("DISTLOCK_SERVE", daemon.address()).env("PYTHONPATH", clients().join("python"));
            command.env("PYTHONDONTWRITEBYTECODE", "1");
            if program == "node" {
                command.arg("--eval");
            }
            let output = command.arg(&text).stdin(Stdio::null()).output().unwrap();
            assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
            programs += 1;
        }
    }
    assert!(programs >= 2, "{programs}");
}
