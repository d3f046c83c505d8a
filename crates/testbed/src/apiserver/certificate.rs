//! The certificate that the server shows, and the key that also signs the tokens of service accounts. It would make them itself at each
//! start, of RSA, which is a sixth of the CPU time of a start, and each connection would cost more.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::{CERTIFICATE_NAME, write_new};
use crate::{Error, Result, loopback};

/// Names by which pods and people call it, besides [`CERTIFICATE_NAME`].
const OTHER_NAMES: [&str; 3] = ["kubernetes.default", "kubernetes", "localhost"];

/// Files in the directory of certificates.
pub(super) const CERTIFICATE: &str = "apiserver.crt";
pub(super) const KEY: &str = "apiserver.key";
pub(super) const PUBLIC_KEY: &str = "apiserver.pub";

/// Makes the directory with the files in it. The certificate comes with that of the authority that has signed it, whose key nobody keeps.
pub(super) fn write(directory: &Path, advertised: IpAddr, cluster_ips: &[IpNet]) -> Result<()> {
    let (certificate, key) = make(advertised, cluster_ips).map_err(|error| Error::Invalid(error.to_string()))?;
    fs::create_dir(directory).map_err(Error::file("make", directory))?;
    let files = [
        (CERTIFICATE, certificate, 0o644),
        (KEY, key.serialize_pem(), 0o600),
        (PUBLIC_KEY, key.public_key_pem(), 0o644),
    ];
    for (name, content, mode) in files {
        write_new(&directory.join(name), mode, &content)?;
    }
    Ok(())
}

/// The certificates in PEM, and the key.
fn make(advertised: IpAddr, cluster_ips: &[IpNet]) -> std::result::Result<(String, KeyPair), rcgen::Error> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.distinguished_name.push(DnType::CommonName, "weir-testbed");
    let authority_key = KeyPair::generate()?;
    let signed = authority.self_signed(&authority_key)?;

    let names = [CERTIFICATE_NAME].into_iter().chain(OTHER_NAMES).map(str::to_owned);
    let services = cluster_ips.iter().map(|range| first_service(*range));
    let addresses = services.chain([advertised, loopback::address().into()]).map(|address| address.to_string());
    let mut own = CertificateParams::new(names.chain(addresses).collect::<Vec<_>>())?;
    own.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    let key = KeyPair::generate()?;
    let own = own.signed_by(&key, &Issuer::new(authority, authority_key))?;
    Ok((own.pem() + &signed.pem(), key))
}

/// The cluster IP of the Service of the API server itself, `default/kubernetes`: the first one of a range.
fn first_service(range: IpNet) -> IpAddr {
    match range.network() {
        IpAddr::V4(network) => IpAddr::V4((network.to_bits() | 1).into()),
        IpAddr::V6(network) => IpAddr::V6((network.to_bits() | 1).into()),
    }
}
