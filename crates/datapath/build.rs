//! Compiles `bpf/*.bpf.c` with the flags of `bpf/flags` into `OUT_DIR`, and tells the crate by `WEIR_OBJECTS` which objects they are.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const OBJECTS: [&str; 3] = ["xdp", "tc", "sock"];

fn main() {
    if let Err(message) = build() {
        println!("cargo::error={message}");
    }
}

fn build() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=WEIR_CLANG");
    println!("cargo::rerun-if-env-changed=WEIR_LLVM_STRIP");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(|e| e.to_string())?).join("../..");
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| e.to_string())?);
    let bpf = root.join("bpf");
    println!("cargo::rerun-if-changed={}", bpf.display());
    // Whether programs that were loaded before are the same as these; a new version of ours may load them in another way.
    let mut made_of = DefaultHasher::new();
    env::var("CARGO_PKG_VERSION").map_err(|e| e.to_string())?.hash(&mut made_of);
    for name in OBJECTS {
        let object = compile(&root, name, &out)?;
        fs::read(&object).map_err(|e| format!("cannot read {}: {e}", object.display()))?.hash(&mut made_of);
    }
    println!("cargo::rustc-env=WEIR_OBJECTS={:016x}", made_of.finish());
    Ok(())
}

fn compile(root: &Path, name: &str, out: &Path) -> Result<PathBuf, String> {
    let clang = env::var("WEIR_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let strip = env::var("WEIR_LLVM_STRIP").unwrap_or_else(|_| "llvm-strip-19".to_owned());
    let object = out.join(format!("{name}.bpf.o"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").map_err(|e| e.to_string())?;
    let mut command = Command::new(&clang);
    command.current_dir(root).arg("@bpf/flags");
    // The kernel's headers of a multiarch Debian; elsewhere the directory is not there and clang ignores it.
    command.arg("-idirafter").arg(format!("/usr/include/{arch}-linux-gnu"));
    command.arg("-c").arg(format!("bpf/{name}.bpf.c")).arg("-o").arg(&object);
    run(command, &format!("{clang} with the bpf target (Debian: clang-19, libbpf-dev)"))?;
    // Debugging information goes, BTF stays.
    let mut command = Command::new(&strip);
    command.arg("-g").arg(&object);
    run(command, &format!("{strip} (Debian: llvm-19)"))?;
    Ok(object)
}

fn run(mut command: Command, what: &str) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("cannot run {what}: {e}; `make bootstrap` installs it"))?;
    if output.status.success() {
        return Ok(());
    }
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        println!("cargo::warning={line}");
    }
    Err(format!("{what} failed on the warnings above"))
}
