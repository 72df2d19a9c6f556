/* SPDX-License-Identifier: Apache-2.0 */
/*
 * https for etcd.c: the certificate of etcd is verified, with the name or address of the URL, and
 * this engine shows its own if cluster.etcd_cert names one. The files are read at the start, and
 * after a failure if they have changed. The control plane's thread, which a handshake takes about a
 * millisecond every ETCD_PERIOD_S.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "config/secret_file.h"
#include "config/settings.h"
#include "config/text_fit.h"
#include "engine/control/members/etcd_inner.h"
#include "engine/control/net/secure.h"

static uint64_t etcd_files_version(const struct settings *s)
{
	const char *const path[] = {s->cluster_etcd_ca, s->cluster_etcd_cert, s->cluster_etcd_key};

	return files_version(path, 3);
}

int etcd_tls_open(const struct settings *s, SSL_CTX **ret_tls, char *why, size_t why_bytes)
{
	uint64_t version = etcd_files_version(s); /* a file may change while they are read */
	SSL_CTX *tls = SSL_CTX_new(TLS_client_method());
	const char *setting = "cluster.etcd_ca", *path = s->cluster_etcd_ca, *wrong = NULL;

	if (!tls || SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION) != 1)
		wrong = "no memory";
	else if ((*path ? SSL_CTX_load_verify_file(tls, path)
			: SSL_CTX_set_default_verify_paths(tls)) != 1)
		wrong = secure_reason();
	if (!wrong && s->cluster_etcd_cert[0]) {
		wrong = secure_files_use(tls, s->cluster_etcd_cert, s->cluster_etcd_key, &path);
		setting = path == s->cluster_etcd_key ? "cluster.etcd_key" : "cluster.etcd_cert";
	}
	if (wrong) {
		text_fit(why, why_bytes, "%s %s: %s", setting, path, wrong);
		SSL_CTX_free(tls);
		return -EINVAL;
	}
	SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_app_data(tls, (void *)(uintptr_t)version);
	*ret_tls = tls;
	return 0;
}

bool etcd_tls_changed(const struct settings *s, const SSL_CTX *tls)
{
	return (uint64_t)(uintptr_t)SSL_CTX_get_app_data(tls) != etcd_files_version(s);
}

void etcd_tls_free(SSL_CTX *tls)
{
	SSL_CTX_free(tls);
}

struct bufferevent *etcd_tls_stream(SSL_CTX *tls, struct event_base *base, const char *host)
{
	unsigned char address[sizeof(struct in6_addr)];
	bool number =
		inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
	SSL *ssl = SSL_new(tls);
	struct bufferevent *stream;

	if (!ssl)
		return NULL;
	if (number ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) != 1
		   : SSL_set1_host(ssl, host) != 1 || SSL_set_tlsext_host_name(ssl, host) != 1) {
		SSL_free(ssl);
		return NULL;
	}
	stream = bufferevent_openssl_socket_new(
		base, -1, ssl, BUFFEREVENT_SSL_CONNECTING, BEV_OPT_CLOSE_ON_FREE);
	if (stream) /* it has freed the session otherwise */
		bufferevent_openssl_set_allow_dirty_shutdown(stream, 1);
	return stream;
}

const char *etcd_tls_error(struct bufferevent *stream, char *ret, size_t bytes)
{
	SSL *ssl = stream ? bufferevent_openssl_get_ssl(stream) : NULL;
	long verified = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
	unsigned long error = stream ? bufferevent_get_openssl_error(stream) : 0;
	const char *reason = error ? ERR_reason_error_string(error) : NULL;

	if (verified != X509_V_OK)
		text_fit(ret, bytes,
			"its certificate is refused: %s; see cluster.etcd_ca, and the names in the certificate",
			X509_verify_cert_error_string(verified));
	else if (reason)
		text_fit(ret, bytes, "TLS: %s; see cluster.etcd_cert and cluster.etcd_key", reason);
	else
		text_fit(ret, bytes,
			"no answer; check the address, the network and that it serves https");
	return ret;
}
