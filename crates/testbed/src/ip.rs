//! Running `ip` and `ethtool`.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::{Error, Result};

/// Runs one `ip` command in this process's own namespace.
pub(crate) fn run<const N: usize>(arguments: [&str; N]) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments);
    checked(command, "iproute2").map(drop)
}

/// Runs a command to its end; `package` is what to install when the program is missing.
pub(crate) fn checked(mut command: Command, package: &str) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|source| missing(&program, package, source))?;
    if output.status.success() {
        return Ok(output);
    }
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    Err(Error::Command {
        command: format!("{program} {}", arguments.join(" ")),
        status: output.status.to_string(),
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Runs a script of `ip` lines with the given command, which is `ip` in the right namespace.
pub(crate) fn batch(mut command: Command, netns: &str, script: &str) -> Result<()> {
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| missing("ip", "iproute2", source))?;
    if let Some(mut stdin) = child.stdin.take() {
        // `ip` stops reading at the first line that fails: what it printed says more than the broken pipe.
        let written = stdin.write_all(script.as_bytes()).and_then(|()| stdin.write_all(b"\n"));
        match written {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                return Err(Error::Io { action: format!("feed `ip -batch` in {netns}"), source: error });
            }
            Ok(()) | Err(_) => {}
        }
    }
    let output = child.wait_with_output().map_err(Error::io(format!("wait for `ip -batch` in {netns}")))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(Error::Ip {
        line: failed_line(script, &message).unwrap_or(script).to_owned(),
        netns: netns.to_owned(),
        message: message.trim().replace('\n', "; "),
    })
}

/// The script's line that "Command failed -:N" names.
fn failed_line<'a>(script: &'a str, message: &str) -> Option<&'a str> {
    let number: usize = message.rsplit_once("Command failed -:")?.1.trim().parse().ok()?;
    script.lines().nth(number.checked_sub(1)?).map(str::trim)
}

fn missing(program: &str, package: &str, source: std::io::Error) -> Error {
    if source.kind() == std::io::ErrorKind::NotFound {
        return Error::Missing { what: format!("the program {program}"), hint: format!("install {package}") };
    }
    Error::Io { action: format!("start {program}"), source }
}

#[cfg(test)]
mod tests {
    use super::failed_line;

    #[test]
    fn the_failing_line_is_taken_from_the_message() {
        let script = "link set lo up\n  link set nothing up\nlink set other up";
        let message = "Cannot find device \"nothing\"\nCommand failed -:2\n";
        assert_eq!(failed_line(script, message), Some("link set nothing up"));
    }
}
