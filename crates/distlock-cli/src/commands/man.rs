//! `distlock man`: prints the manual page of the program or of one command.

use crate::commands::fail;
use crate::exit::{Exit, ExitCode};
use crate::flags::{self, Man};

pub(super) fn main(flags: &Man) -> Exit {
    let mut program = flags::definition();
    program.build();
    let page = match &flags.command {
        None => Some(program.clone()),
        Some(name) => program.find_subcommand(name).cloned(),
    };
    let Some(page) = page else {
        return fail(
            ExitCode::Usage,
            format!(
                "there is no command {:?}; `distlock help` lists the commands",
                flags.command.as_deref().unwrap_or_default()
            ),
        );
    };
    match clap_mangen::Man::new(page).render(&mut std::io::stdout()) {
        Ok(()) => Exit::SUCCESS,
        // A reader that stops reading is not a failure.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Exit::SUCCESS,
        Err(error) => fail(ExitCode::Internal, format!("cannot write the page: {error}")),
    }
}
