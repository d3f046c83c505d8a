//! Compiles the wrapper with the flags of `bpf/flags` into `OUT_DIR`.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=wrapper.bpf.c");
    println!("cargo::rerun-if-changed=../../bpf/flags");
    if let Err(message) = compile() {
        println!("cargo::error={message}");
    }
}

fn compile() -> Result<(), String> {
    let variable = |name: &str| env::var(name).map_err(|e| format!("{name}: {e}"));
    let clang = env::var("WEIR_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let output = Command::new(&clang)
        .current_dir(format!("{}/../..", variable("CARGO_MANIFEST_DIR")?))
        .arg("@bpf/flags")
        .arg("-idirafter")
        .arg(format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH")?))
        .args(["-c", "benches/packet/wrapper.bpf.c", "-o"])
        .arg(format!("{}/wrapper.bpf.o", variable("OUT_DIR")?))
        .output()
        .map_err(|e| format!("cannot run {clang}: {e}; `make bootstrap` installs it"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
