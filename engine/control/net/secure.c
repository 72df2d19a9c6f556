/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of the cluster or the certificates of this engine, and what TLS does with them. One
 * thread at a time: a helper thread reads the files into memory of its own, which the control
 * plane's thread takes.
 *
 * An identity that TLS sends in clear is the number of a key: a hash of it. The first key of the
 * file is the one that this engine dials with; it takes both.
 */
#include "engine/control/net/secure.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "config/certificates.h"
#include "config/log.h"
#include "config/psk.h"
#include "config/secret_file.h"
#include "engine/control/base/control.h"
#include "engine/control/base/work.h"
#include "engine/control/net/address.h"
#include "engine/control/net/net.h"

#define SECURE_PERIOD_US 1000000 /* between two looks at the files and the links */
#define SECURE_SOON_US 2000      /* the same while links wait to be verified again */
#define SECURE_AGAIN_S 60        /* links are verified after the first end of a CA or CRL */
#define CHAIN_BYTES_MAX 32768
#define KEY_FILE_BYTES 16384
static_assert(PSK_WHY_BYTES == CERTIFICATES_WHY_BYTES, "one text");
#define KEY_ID_BYTES 17 /* an identity as text: 16 hexadecimal digits and the zero */
/* instead of the number of a key: the other end has named one that is not in the file */
#define KEY_UNKNOWN 1u

struct key_reading {
	struct work work;
	struct control *control;
	const struct settings *settings;
	uint64_t version; /* of the files that were read last; 0: read them anyhow */
	struct psk_file file;
	struct certificates *certificates;
	int status; /* 0, -errno, or 1: they have not changed */
	char why[PSK_WHY_BYTES];
};

struct secure {
	struct control *control;
	SSL_CTX *ctx;
	struct psk_file file;
	char identity[KEY_ID_BYTES];       /* of the first key */
	struct certificates *certificates; /* instead of keys; NULL: keys */
	uintptr_t epoch;  /* of the certificates: links of others are verified again */
	int64_t again_s;  /* one has ended: links are verified again at that time */
	int64_t looked_s; /* time of the last look; the clock may go back */
	struct works *works;
	struct net_timer *timer;
	struct key_reading *reading;
	bool (*verify)(struct control *control, bool changed);
	bool changed;              /* other files were read since the last call */
	uint64_t version;          /* of the files */
	char error[PSK_WHY_BYTES]; /* of the last reading */
	uint64_t asked, obeyed;    /* SIGHUPs */
};

/* ---- callbacks of TLS ------------------------------------------------------------------------ */

static struct secure *secure_of(const SSL *ssl)
{
	return SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
}

/* TLS takes a session only in the context that it was made for. */
static const unsigned char session_context[] = "peercache";

static SSL_SESSION *key_session(SSL *ssl, const struct psk *key)
{
	static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
	SSL_SESSION *session = SSL_SESSION_new();

	if (session && SSL_SESSION_set1_master_key(session, key->bytes, sizeof(key->bytes)) == 1 &&
		SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, aes_128_gcm_sha256)) == 1 &&
		SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
		SSL_SESSION_set1_id_context(session, session_context, sizeof(session_context)) == 1)
		return session;
	SSL_SESSION_free(session);
	return NULL;
}

/* This end dials. */
static int key_use(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id, size_t *ret_bytes,
	SSL_SESSION **ret_session)
{
	struct secure *secure = secure_of(ssl);

	(void)md;
	*ret_session = key_session(ssl, &secure->file.key[0]);
	*ret_id = (const unsigned char *)secure->identity;
	*ret_bytes = KEY_ID_BYTES - 1;
	SSL_set_app_data(ssl, (void *)(uintptr_t)secure->file.key[0].id);
	return *ret_session != NULL;
}

/* This end was dialled, and the other one names a key. */
static int key_find(SSL *ssl, const unsigned char *id, size_t bytes, SSL_SESSION **ret_session)
{
	const struct psk_file *file = &secure_of(ssl)->file;
	char own[KEY_ID_BYTES];

	*ret_session = NULL;
	SSL_set_app_data(ssl, (void *)(uintptr_t)KEY_UNKNOWN);
	for (unsigned i = 0; i < file->count; i++) {
		snprintf(own, sizeof(own), "%016" PRIx64, file->key[i].id);
		if (bytes != KEY_ID_BYTES - 1 || memcmp(id, own, bytes) != 0)
			continue;
		*ret_session = key_session(ssl, &file->key[i]);
		SSL_set_app_data(ssl, (void *)(uintptr_t)file->key[i].id);
		return *ret_session != NULL;
	}
	return 1; /* the handshake goes on without it, and finds no certificate */
}

static bool key_valid(const struct psk_file *file, uint64_t id)
{
	for (unsigned i = 0; i < file->count; i++)
		if (file->key[i].id == id)
			return true;
	return false;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* OpenSSL's own verification has ended with `good`; the list refuses more. */
static int certificate_verified(int good, X509_STORE_CTX *store)
{
	SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());

	if (!good || X509_STORE_CTX_get_error_depth(store))
		return good;
	if (certificate_denied(
		    secure_of(ssl)->certificates, X509_STORE_CTX_get_current_cert(store))) {
		X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
		return 0;
	}
	if (SSL_get_SSL_CTX(ssl) == secure_of(ssl)->ctx)
		SSL_set_app_data(ssl, (void *)secure_of(ssl)->epoch);
	return 1;
}

static bool certificates_use(SSL_CTX *ctx, const struct certificates *c)
{
	SSL_CTX_set1_cert_store(ctx, c->store);
	SSL_CTX_set_verify_depth(ctx, CERTIFICATES_DEPTH);
	SSL_CTX_set_max_cert_list(ctx, CHAIN_BYTES_MAX);
	SSL_CTX_set_verify(
		ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, certificate_verified);
	return SSL_CTX_use_certificate(ctx, c->own) == 1 &&
	       SSL_CTX_set1_chain(ctx, c->chain) == 1 && SSL_CTX_use_PrivateKey(ctx, c->key) == 1;
}

static SSL_CTX *secure_ctx_new(struct secure *secure, const struct certificates *certificates)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_method());

	/* groups: psk_dhe_ke only, so a key that is lost opens no connection of before */
	if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
		SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") != 1 ||
		SSL_CTX_set1_groups_list(ctx, "X25519:P-256") != 1 ||
		SSL_CTX_set_session_id_context(ctx, session_context, sizeof(session_context)) !=
			1) {
		SSL_CTX_free(ctx);
		return NULL;
	}
	SSL_CTX_set_app_data(ctx, secure);
	/* no resumption and no early data: each link proves itself */
	SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
	SSL_CTX_clear_options(ctx, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_num_tickets(ctx, 0);
	SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_read_ahead(ctx, 1);
	if (certificates && certificates_use(ctx, certificates))
		return ctx;
	if (certificates) {
		SSL_CTX_free(ctx);
		return NULL;
	}
	/* a server without the key, but with a certificate, is refused: no CA is known */
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_psk_use_session_callback(ctx, key_use);
	SSL_CTX_set_psk_find_session_callback(ctx, key_find);
	return ctx;
}

struct ssl_st *secure_session(struct control *control, bool accepted)
{
	SSL *ssl = SSL_new(control->secure->ctx);

	if (ssl && accepted)
		SSL_set_accept_state(ssl);
	else if (ssl)
		SSL_set_connect_state(ssl);
	return ssl;
}

/* Verified again after other files were read, and when a CA or CRL has ended. */
static bool certificate_proven(SSL *ssl, unsigned *budget, char why[SECURE_WHY_BYTES])
{
	const struct secure *secure = secure_of(ssl);
	X509 *certificate = SSL_get0_peer_certificate(ssl);
	const char *wrong = certificate ? NULL : "it has shown no certificate";
	bool same = (uintptr_t)SSL_get_app_data(ssl) == secure->epoch;

	if (same && !wrong && X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0)
		wrong = "its certificate has expired";
	if (!same && !wrong && *budget == 0)
		return true;
	if (!same && !wrong) {
		--*budget;
		SSL_set_app_data(ssl, (void *)secure->epoch);
		wrong = certificate_wrong(secure->certificates, certificate,
			SSL_get_peer_cert_chain(ssl), SSL_is_server(ssl));
	}
	if (wrong)
		snprintf(why, SECURE_WHY_BYTES, "its certificate is no longer good: %s", wrong);
	return !wrong;
}

bool secure_proven(struct ssl_st *ssl, unsigned *budget, char why[SECURE_WHY_BYTES])
{
	if (secure_of(ssl)->certificates)
		return certificate_proven(ssl, budget, why);
	if (SSL_session_reused(ssl) &&
		key_valid(&secure_of(ssl)->file, (uintptr_t)SSL_get_app_data(ssl)))
		return true;
	snprintf(why, SECURE_WHY_BYTES, "its key is no longer in cluster.psk_file");
	return false;
}

bool secure_names(struct ssl_st *ssl, const char *cluster, const char *name)
{
	return !ssl || !secure_of(ssl)->certificates ||
	       certificate_names(SSL_get0_peer_certificate(ssl), cluster, name);
}

static const char *failed_accept(const SSL *ssl, int reason)
{
	if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
		return "it shows no certificate: this cluster takes only engines with one (cluster.tls_dir)";
	if (reason == SSL_R_BINDER_DOES_NOT_VERIFY)
		return "it names the key of this engine and does not have it";
	if ((uintptr_t)SSL_get_app_data(ssl) == KEY_UNKNOWN)
		return "its key is not in cluster.psk_file here: make the file the same on all engines";
	if ((uintptr_t)SSL_get_app_data(ssl) == 0 && !secure_of(ssl)->certificates)
		return "it offers no key: this cluster takes only engines with its cluster.psk_file";
	return ERR_reason_error_string(ERR_PACK(ERR_LIB_SSL, 0, reason));
}

/* The other end sent this alert: it refuses this engine. */
static void failed_refused(const SSL *ssl, int alert, char why[SECURE_WHY_BYTES])
{
	bool certificates = secure_of(ssl)->certificates != NULL;

	snprintf(why, SECURE_WHY_BYTES, "it refuses the %s of this engine (%s): %s",
		certificates ? "certificate" : "key", SSL_alert_desc_string_long(alert),
		certificates ? "its log says why"
			     : "make cluster.psk_file the same on all engines");
}

bool secure_failed(struct ssl_st *ssl, char why[SECURE_WHY_BYTES])
{
	int reason = ERR_GET_REASON(ERR_peek_error()), alert = reason - SSL_AD_REASON_OFFSET;
	long verified = SSL_get_verify_result(ssl);
	bool plain = reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
		     reason == SSL_R_HTTPS_PROXY_REQUEST || reason == SSL_R_BAD_RECORD_TYPE;
	const char *text = NULL;

	if (plain)
		snprintf(why, SECURE_WHY_BYTES,
			"it speaks no TLS: it is an engine without a key or certificate, or no engine");
	else if (alert == SSL_AD_PROTOCOL_VERSION)
		snprintf(why, SECURE_WHY_BYTES,
			"it takes clear text only: set cluster.psk_file or cluster.tls_dir there, too");
	else if (alert > 0)
		failed_refused(ssl, alert, why);
	else if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED && verified != X509_V_OK)
		snprintf(why, SECURE_WHY_BYTES, "its certificate is refused: %s",
			verified == X509_V_ERR_CERT_REJECTED
				? "it is on the list deny of cluster.tls_dir"
				: X509_verify_cert_error_string(verified));
	else if (reason)
		text = SSL_is_server(ssl)
			       ? failed_accept(ssl, reason)
			       : ERR_reason_error_string(ERR_PACK(ERR_LIB_SSL, 0, reason));
	else
		text = "the TLS handshake failed";
	if (text)
		snprintf(why, SECURE_WHY_BYTES, "%s", text);
	else if (!*why)
		snprintf(why, SECURE_WHY_BYTES, "TLS error %d", reason);
	return plain;
}

/* ---- reading the files again ----------------------------------------------------------------- */

static void keys_take(struct secure *secure, const struct psk_file *file)
{
	secure->file = *file;
	snprintf(secure->identity, sizeof(secure->identity), "%016" PRIx64, file->key[0].id);
	log_info("cluster.psk_file: %u key%s, links are dialled with %s", file->count,
		file->count == 1 ? "" : "s", secure->identity);
}

/* Takes the certificates over. Links that stand keep the context that they were made with. */
static int certificates_take(struct secure *secure, struct certificates *certificates)
{
	SSL_CTX *ctx = secure_ctx_new(secure, certificates);

	if (!ctx) {
		certificates_free(certificates);
		return -ENOMEM;
	}
	SSL_CTX_free(secure->ctx);
	certificates_free(secure->certificates);
	secure->ctx = ctx;
	secure->certificates = certificates;
	secure->epoch++;
	secure->again_s = certificates->ends_s;
	log_info(
		"cluster.tls_dir: read%s; the first of its certificates and CRLs ends in %lld days",
		certificates->denied ? ", with a list deny" : "",
		((long long)certificates->ends_s - (long long)time(NULL)) / 86400);
	return 0;
}

/* The names of the engine are fixed: a certificate of another one is refused. */
static int certificates_read_own(
	const struct control *control, struct certificates **ret, char why[CERTIFICATES_WHY_BYTES])
{
	const struct settings *s = control->settings;
	int status = certificates_read(s->cluster_tls_dir, ret, why);

	if (status == 0 && !certificate_names((*ret)->own, s->cluster_id, control->name)) {
		snprintf(why, CERTIFICATES_WHY_BYTES,
			"cluster.tls_dir %.100s: cert.pem is not of this engine: it needs the URI peercache:%.64s/%.128s among its alternative names (subjectAltName)",
			s->cluster_tls_dir, s->cluster_id, control->name);
		certificates_free(*ret);
		*ret = NULL;
		status = -EINVAL;
	}
	return status;
}

static uint64_t secure_version(const struct settings *s)
{
	const char *path = s->cluster_psk_file;

	return s->cluster_tls_dir[0] ? certificates_version(s->cluster_tls_dir)
				     : files_version(&path, 1);
}

static int secure_read(struct key_reading *r)
{
	return r->settings->cluster_tls_dir[0]
		       ? certificates_read_own(r->control, &r->certificates, r->why)
		       : psk_file_read(r->settings->cluster_psk_file, &r->file, r->why);
}

static int secure_take(struct secure *secure, struct key_reading *r)
{
	struct certificates *certificates = r->certificates;
	int status = 0;

	r->certificates = NULL;
	if (certificates)
		status = certificates_take(secure, certificates);
	else
		keys_take(secure, &r->file);
	if (status == 0)
		secure->version = r->version;
	secure->changed = true;
	return status;
}

static void key_reading_run(struct work *work, unsigned part)
{
	struct key_reading *r = (struct key_reading *)work;
	uint64_t known = r->version;

	(void)part;
	r->version = secure_version(r->settings);
	r->status = r->version == known ? 1 : secure_read(r);
}

static void key_reading_free(struct key_reading *reading)
{
	if (!reading)
		return;
	certificates_free(reading->certificates);
	OPENSSL_cleanse(&reading->file, sizeof(reading->file));
	free(reading);
}

static void key_reading_done(struct work *work)
{
	struct key_reading *r = (struct key_reading *)work;
	struct secure *secure = r->control->secure;

	secure->reading = NULL;
	if (r->status < 0 && strcmp(r->why, secure->error) != 0)
		log_error("%s. What it had is kept, and it is read again every second", r->why);
	if (r->status < 0)
		snprintf(secure->error, sizeof(secure->error), "%s", r->why);
	if (r->status == 0) {
		secure->error[0] = '\0';
		if (secure_take(secure, r) < 0)
			log_error(
				"cluster.tls_dir: no memory for its certificates; they are read again");
		else
			(void)net_timer_set(secure->timer, SECURE_SOON_US);
	}
	key_reading_free(r);
}

static void keys_look(void *context)
{
	struct secure *secure = context;
	uint64_t asked = shm_load64(&secure->asked);
	int64_t now_s = time(NULL);
	struct key_reading *reading;
	bool more;

	if (secure->certificates && (now_s >= secure->again_s || now_s < secure->looked_s)) {
		secure->again_s = now_s + SECURE_AGAIN_S;
		secure->epoch++;
	}
	secure->looked_s = now_s;
	more = secure->verify && secure->verify(secure->control, secure->changed);
	secure->changed = false;
	(void)net_timer_set(secure->timer, more ? SECURE_SOON_US : SECURE_PERIOD_US);
	if (secure->reading || more)
		return;
	reading = calloc(1, sizeof(*reading));
	if (!reading)
		return;
	reading->work.run = key_reading_run;
	reading->work.done = key_reading_done;
	reading->control = secure->control;
	reading->settings = secure->control->settings;
	if (asked == secure->obeyed)
		reading->version = secure->version;
	secure->obeyed = asked;
	secure->reading = reading;
	work_submit(secure->works, 0, &reading->work);
}

void secure_watch(struct control *control, bool (*verify)(struct control *control, bool changed))
{
	if (control->secure)
		control->secure->verify = verify;
}

void secure_reload(struct control *control)
{
	if (control->secure)
		shm_count(&control->secure->asked, 1);
}

/* ---- files of other ports -------------------------------------------------------------------- */

const char *secure_reason(void)
{
	unsigned long first = ERR_peek_error(); /* of the system: others that follow say less */
	const char *reason = ERR_SYSTEM_ERROR(first)
				     ? strerror(ERR_GET_REASON(first))
				     : ERR_reason_error_string(ERR_peek_last_error());

	ERR_clear_error();
	return reason ? reason : "unknown error";
}

static const char *key_file_use(SSL_CTX *ctx, const char *path)
{
	char text[KEY_FILE_BYTES];
	const char *wrong = NULL;
	int bytes = secret_file_read(path, text, sizeof(text), &wrong);
	BIO *memory = bytes < 0 ? NULL : BIO_new_mem_buf(text, bytes);
	EVP_PKEY *key = memory ? PEM_read_bio_PrivateKey(memory, NULL, NULL, (void *)"") : NULL;

	if (bytes >= 0)
		wrong = key && SSL_CTX_use_PrivateKey(ctx, key) == 1 ? NULL : secure_reason();
	EVP_PKEY_free(key);
	BIO_free(memory);
	explicit_bzero(text, sizeof(text));
	return wrong;
}

const char *secure_files_use(
	struct ssl_ctx_st *ctx, const char *chain, const char *key, const char **ret_path)
{
	*ret_path = chain;
	if (SSL_CTX_use_certificate_chain_file(ctx, chain) != 1)
		return secure_reason();
	*ret_path = key;
	return key_file_use(ctx, key);
}

/* ---- open and close -------------------------------------------------------------------------- */

const char *secure_word(const struct control *control)
{
	return !control->secure ? "none" : control->secure->certificates ? "certificate" : "key";
}

int64_t secure_ends_s(const struct control *control)
{
	const struct secure *secure = control->secure;

	return secure && secure->certificates ? secure->certificates->ends_s : 0;
}

/* The address that others connect to is one that only this host reaches. */
static bool secure_local(const struct settings *s)
{
	return address_text_loopback(s->cluster_bind[0] ? s->cluster_bind : s->cluster_address);
}

bool secure_missing(const struct control *control)
{
	return !control->secure && control->settings->cluster_security == SECURITY_AUTO &&
	       !secure_local(control->settings);
}

/* Is TLS wanted? 1, 0, or -EINVAL after logging. */
static int secure_wanted(const struct settings *s)
{
	bool key = s->cluster_psk_file[0] != '\0', certificates = s->cluster_tls_dir[0] != '\0';

	if (key && certificates) {
		log_error(
			"cluster.psk_file and cluster.tls_dir are both set, and links have a key or certificates: take one of them out");
		return -EINVAL;
	}
	if (certificates && strchr(s->cluster_id, '/')) {
		log_error(
			"cluster.id = %s has a /, which ends the name of the cluster in certificates (cluster.tls_dir): take another name",
			s->cluster_id);
		return -EINVAL;
	}
	if (s->cluster_security == SECURITY_REQUIRED && !key && !certificates) {
		log_error(
			"cluster.security = required, but neither cluster.psk_file nor cluster.tls_dir is set: make a key with peercachectl keygen, and give it to all engines");
		return -EINVAL;
	}
	if (s->cluster_security == SECURITY_NONE && (key || certificates)) {
		log_error("cluster.security = none, but cluster.%s is set: take one of them out",
			key ? "psk_file" : "tls_dir");
		return -EINVAL;
	}
	return key || certificates;
}

/* Reads the files for the first time. Returns 0, or -errno after logging; the caller frees it. */
static int secure_first(struct control *control, struct key_reading **ret)
{
	struct key_reading *r = calloc(1, sizeof(*r));

	*ret = r;
	if (!r)
		return -ENOMEM;
	r->control = control;
	r->settings = control->settings;
	r->version = secure_version(r->settings);
	r->status = secure_read(r);
	if (r->status < 0)
		log_error("%s", r->why);
	return r->status;
}

int secure_check(struct control *control)
{
	struct key_reading *first = NULL;
	int status = secure_wanted(control->settings);

	if (status > 0)
		status = secure_first(control, &first);
	key_reading_free(first);
	return status;
}

/* No core dump has this memory; that of OpenSSL has copies of the key. */
static struct secure *secure_new(struct control *control)
{
	struct secure *secure = mmap(
		NULL, sizeof(*secure), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (secure == MAP_FAILED)
		return NULL;
	(void)madvise(secure, sizeof(*secure), MADV_DONTDUMP);
	secure->control = control;
	control->secure = secure;
	return secure;
}

static int secure_start(struct secure *secure, struct key_reading *first)
{
	struct control *control = secure->control;
	int status = secure_take(secure, first);

	if (status == 0 && !secure->ctx)
		secure->ctx = secure_ctx_new(secure, NULL);
	secure->timer = net_timer_new(control->base, true, keys_look, secure);
	if (status < 0 || !secure->ctx || !secure->timer)
		return -ENOMEM;
	status = works_open(control->base,
		&(struct works_options){
			.name = "pc-keys", .queues = 1, .threads = 1, .limit_s = 10},
		&secure->works);
	if (status == 0 && net_timer_set(secure->timer, SECURE_PERIOD_US) < 0)
		status = -ENOMEM;
	return status;
}

int secure_open(struct control *control)
{
	struct key_reading *first = NULL;
	struct secure *secure;
	int status = secure_wanted(control->settings);

	if (secure_missing(control))
		log_warn(
			"links between engines are in clear text, and any process that reaches port %d can join and change pages. Set cluster.psk_file on all engines (peercachectl keygen makes the file), or cluster.security = none if only engines reach that port",
			(int)control->settings->cluster_port);
	if (status <= 0)
		return status;
	status = secure_first(control, &first);
	if (status == 0) {
		secure = secure_new(control);
		status = secure ? secure_start(secure, first) : -ENOMEM;
		if (status < 0)
			secure_close(control);
	}
	key_reading_free(first);
	return status;
}

void secure_close(struct control *control)
{
	struct secure *secure = control->secure;

	if (!secure)
		return;
	net_timer_free(secure->timer);
	works_close(secure->works);
	key_reading_free(secure->reading);
	SSL_CTX_free(secure->ctx);
	certificates_free(secure->certificates);
	OPENSSL_cleanse(secure, sizeof(*secure));
	munmap(secure, sizeof(*secure));
	control->secure = NULL;
}
