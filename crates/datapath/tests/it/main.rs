//! The programs and maps in the running kernel. All of it needs root and skips loudly without.

mod case;
mod forward;
mod node;
mod pins;
