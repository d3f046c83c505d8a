//! Keys, their file, and how one is replaced.

use std::fs;

use weir_mesh::{Config, KeyError, KeyFile, KeyFileError, KeyRing, Refusal};

use crate::world::{NEW, OLD, World, keys, millis};

#[test]
fn a_file_holds_one_key_per_line() {
    let text = format!("# since May\n\n  {NEW}  \n{OLD}\n");
    assert!(KeyRing::parse(&text).is_ok());
    assert_eq!(KeyRing::parse("# nothing\n\n").err(), Some(KeyError::Empty));
    assert_eq!(KeyRing::parse("secret\n").err(), Some(KeyError::Short { line: 1, length: 6 }));
    assert_eq!(KeyRing::parse(&format!("{NEW}\n{NEW}")).err(), Some(KeyError::Repeated { line: 2 }));
    let third = format!("{NEW}\n{OLD}\nthird-0123456789abcdef0123456789abcdef");
    assert_eq!(KeyRing::parse(&third).err(), Some(KeyError::TooMany { line: 3 }));
}

#[test]
fn no_text_for_people_shows_a_key() {
    let ring = keys(&[NEW, OLD]);
    let world = World::new(1, Config::default(), &ring);
    let short = KeyRing::parse("short-secret").expect_err("short");
    let texts = [format!("{ring:?}"), format!("{:?}", world.nodes[0].mesh), format!("{short} {short:?}")];
    for text in texts {
        assert!(!text.contains("0123456789abcdef") && !text.contains("secret"), "{text}");
    }
}

#[test]
fn the_file_is_read_again_and_a_wrong_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys");
    assert!(matches!(KeyFile::open(&path), Err(KeyFileError::Read { .. })));
    fs::write(&path, OLD).expect("written");
    let (mut file, _) = KeyFile::open(&path).expect("a good file");
    assert!(file.refresh().expect("read").is_none(), "as it was");

    fs::write(&path, format!("{NEW}\n{OLD}")).expect("written");
    let ring = file.refresh().expect("read").expect("another text");
    assert_eq!(format!("{ring:?}"), "KeyRing(2 of them)");
    assert!(file.refresh().expect("read").is_none());

    fs::write(&path, "abc").expect("written");
    let error = file.refresh().expect_err("too short");
    assert!(error.to_string().contains(&*path.to_string_lossy()) && !error.to_string().contains("abc"), "{error}");
    fs::write(&path, [0xff; 40]).expect("written");
    assert!(matches!(file.refresh(), Err(KeyFileError::Text { .. })));
    fs::write(&path, "x".repeat(5000)).expect("written");
    assert!(matches!(file.refresh(), Err(KeyFileError::Long { .. })));
    fs::remove_file(&path).expect("removed");
    assert!(matches!(file.refresh(), Err(KeyFileError::Read { .. })));

    fs::write(&path, format!("{NEW}\n{OLD}")).expect("written");
    assert!(file.refresh().expect("read").is_none(), "the same keys as before the mistakes");
}

/// A Secret comes to the nodes one after the other: first the new key signs on one of them only.
#[test]
fn while_a_key_is_replaced_nobody_is_lost() {
    let mut world = World::new(2, Config::default(), &keys(&[OLD]));
    world.run(millis(5000));
    let stages: [(&[&str], &[&str]); 5] = [
        (&[NEW, OLD], &[OLD]),
        (&[NEW, OLD], &[NEW, OLD]),
        (&[NEW], &[NEW, OLD]),
        (&[OLD, NEW], &[NEW]),
        (&[NEW], &[NEW]),
    ];
    for (zero, one) in stages {
        world.nodes[0].mesh.set_keys(keys(zero));
        world.nodes[1].mesh.set_keys(keys(one));
        for _ in 0..10 {
            world.run(millis(1000));
            let lost = [world.peer(0, 1).unanswered, world.peer(1, 0).unanswered];
            assert!(lost.iter().all(|unanswered| *unanswered < 3), "{lost:?} with {zero:?} and {one:?}");
        }
    }
}

#[test]
fn nodes_without_a_key_in_common_hear_nothing() {
    let mut world = World::new(2, Config::default(), &keys(&[OLD]));
    world.nodes[0].mesh.set_keys(keys(&[NEW]));
    world.run(millis(10_000));
    assert_eq!((world.peer(0, 1).rtt, world.peer(1, 0).rtt), (None, None));
    assert!(world.nodes[1].mesh.counters().refused(Refusal::Forged) > 10);
    assert_eq!(world.nodes[1].mesh.counters().replies_sent, 0);
}
