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
