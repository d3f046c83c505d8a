//! The mesh, from one packet's bytes to agents on real sockets.

mod budget;
mod codec;
mod exchange;
mod keys;
mod loopback;
mod replay;
mod rotation;
mod schedule;
mod tampering;
mod world;
