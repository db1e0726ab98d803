// SPDX-License-Identifier: Apache-2.0
//! The certificates of `[tls]`, for streams beside zenoh. A stream's door shows the certificate
//! whose fingerprint came over zenoh, and its guest one of the same authority.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    ServerConfig, ServerConnection, SignatureScheme,
};

use crate::config::Tls;

/// SHA-256 of a certificate.
pub type Fingerprint = [u8; 32];

fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// What `[tls]` names.
pub struct Keys {
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    server: Arc<ServerConfig>,
    /// Of this bridge's certificate.
    pub fingerprint: Fingerprint,
}

impl Keys {
    pub fn read(tls: &Tls) -> Result<Keys, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&tls.ca)? {
            roots.add(certificate).map_err(|e| format!("{}: {e}", tls.ca.display()))?;
        }
        let chain = certificates(&tls.certificate)?;
        let own = chain.first().ok_or(format!("{}: no certificate", tls.certificate.display()))?;
        let fingerprint = fingerprint(own);
        let key = PrivateKeyDer::from_pem_file(&tls.key)
            .map_err(|e| format!("{}: {e}", tls.key.display()))?;
        let guests =
            WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build();
        let guests = guests.map_err(|e| format!("{}: {e}", tls.ca.display()))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| {
                let config = config.with_client_cert_verifier(guests);
                config.with_single_cert(chain.clone(), key.clone_key())
            })
            .map_err(|e| format!("{}: {e}", tls.certificate.display()))?;
        server.send_tls13_tickets = 0; // each stream begins anew
        Ok(Keys { provider, chain, key, server: Arc::new(server), fingerprint })
    }

    pub fn server(&self) -> io::Result<ServerConnection> {
        ServerConnection::new(self.server.clone()).map_err(io::Error::other)
    }

    /// To the bridge whose certificate has this fingerprint.
    pub fn client(&self, fingerprint: Fingerprint) -> io::Result<ClientConnection> {
        let algorithms = self.provider.signature_verification_algorithms;
        let config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| {
                config
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Known { fingerprint, algorithms }))
                    .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            })
            .map_err(io::Error::other)?;
        let name = ServerName::try_from("dlx-bridge").expect("a name"); // Known needs none
        ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|e| format!("{}: {e}", path.display()))
}

/// Accepts one certificate, which is known by its fingerprint: no name and no authority says more.
#[derive(Debug)]
struct Known {
    fingerprint: Fingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if fingerprint(certificate) == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 alone is used".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::config::Config;
    use crate::direct::{Door, Invitation, connect};

    /// Two authorities, with a certificate of a robot and of a base each.
    struct Authorities(PathBuf);

    impl Authorities {
        fn new() -> Authorities {
            let all = Authorities(
                std::env::temp_dir().join(format!("dlx-bridge-tls-{}", std::process::id())),
            );
            std::fs::create_dir(&all.0).unwrap();
            std::fs::write(all.0.join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
            let new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
            for ca in ["ours", "other"] {
                all.openssl(&format!("{new} -x509 -subj /CN={ca} -keyout {ca}.key -out {ca}.pem"));
                for one in ["robot", "base"] {
                    let name = format!("{ca}-{one}");
                    all.openssl(&format!(
                        "{new} -subj /CN={one} -keyout {name}.key -out {name}.csr"
                    ));
                    all.openssl(&format!(
                        "x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial \
                         -extfile names -out {name}.pem"
                    ));
                }
            }
            all
        }

        fn openssl(&self, arguments: &str) {
            let mut command = Command::new("openssl");
            let done = command.args(arguments.split(' ')).current_dir(&self.0).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }

        fn keys(&self, ca: &str, one: &str) -> Keys {
            let file = |name: String| self.0.join(name);
            Keys::read(&Tls {
                ca: file(format!("{ca}.pem")),
                certificate: file(format!("{ca}-{one}.pem")),
                key: file(format!("{ca}-{one}.key")),
            })
            .unwrap()
        }
    }

    impl Drop for Authorities {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0); // at most, it stays
        }
    }

    /// Knocks with a ticket that is right, and no certificate; returns what answers.
    fn knock_without_a_certificate(invitation: &Invitation, keys: &Keys) -> io::Result<u8> {
        let algorithms = keys.provider.signature_verification_algorithms;
        let fingerprint = invitation.certificate.unwrap();
        let config = ClientConfig::builder_with_provider(keys.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Known { fingerprint, algorithms }))
            .with_no_client_auth();
        let name = ServerName::try_from("dlx-bridge").unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut tcp = TcpStream::connect(invitation.addresses[0])?;
        tcp.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
        stream.write_all(&[&b"dlx-str1"[..], &invitation.ticket].concat())?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    }

    #[test]
    fn streams_check_the_certificates_of_both_sides() {
        let all = Authorities::new();
        let (ours, base) = (Arc::new(all.keys("ours", "robot")), all.keys("ours", "base"));
        let config = Config { direct: Some(vec!["127.0.0.1:0".into()]), ..Config::default() };
        let door = Door::open(&config, Some(ours)).unwrap();
        let (send, opened) = mpsc::channel();
        let pass = door.invite(Box::new(move |_| send.send(()).unwrap()));
        let invitation = &pass.invitation().unwrap();
        connect(invitation, Some(&base)).unwrap();
        opened.recv_timeout(Duration::from_secs(60)).unwrap();

        let answer = knock_without_a_certificate(invitation, &base);
        assert!(answer.is_err(), "a guest without a certificate: {answer:?}");
        let other = connect(invitation, Some(&all.keys("other", "base")));
        assert!(other.is_err(), "a guest with a certificate of another authority");
        // The door has a certificate of the right authority, and not the one that was told.
        let told = Invitation { certificate: Some(base.fingerprint), ..invitation.clone() };
        let other = connect(&told, Some(&base));
        assert!(other.is_err(), "a door with another certificate");
        assert!(opened.try_recv().is_err(), "one of them came in");
    }
}
