//! `make image`: writes the container image as the Dockerfile has it, of the programs that `make static` has built, for
//! machines without Docker. `weir-image ARCHIVE [NAME]`

use std::path::Path;
use std::process::ExitCode;

use weir_deploy_tests::image::{default_name, pack_built};

const DOCKERFILE: &str = include_str!("../../../docker/Dockerfile");

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (archive, name) = match words.as_slice() {
        [archive] => (archive, default_name()),
        [archive, name] => (archive, name.clone()),
        _ => {
            eprintln!("usage: weir-image ARCHIVE [NAME]");
            return ExitCode::from(2);
        }
    };
    match pack_built(DOCKERFILE, &name, Path::new(archive)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-image: cannot make the image {name}: {error}");
            ExitCode::FAILURE
        }
    }
}
