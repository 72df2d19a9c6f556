/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of the cluster, and what TLS does with them. One thread at a time: a helper thread reads
 * the file into a list of its own, which the control plane's thread takes.
 *
 * An identity that TLS sends in clear is the number of a key: a hash of it. The first key of the
 * file is the one that this engine dials with; it takes both.
 */
#include "engine/control/net/secure.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "config/log.h"
#include "config/psk.h"
#include "engine/control/base/control.h"
#include "engine/control/base/work.h"
#include "engine/control/net/address.h"
#include "engine/control/net/net.h"

#define SECURE_PERIOD_US 1000000 /* between two looks at the file */
#define KEY_ID_BYTES 17          /* an identity as text: 16 hexadecimal digits and the zero */
/* instead of the number of a key: the other end has named one that is not in the file */
#define KEY_UNKNOWN 1u

struct key_reading {
	struct work work;
	struct control *control;
	const char *path;
	struct psk_version known; /* of the file that was read last; all 0: read it anyhow */
	struct psk_file file;
	int status; /* 0, -errno, or 1: it has not changed */
	char why[PSK_WHY_BYTES];
};

struct secure {
	struct control *control;
	SSL_CTX *ctx;
	struct psk_file file;
	char identity[KEY_ID_BYTES]; /* of the first key */
	struct works *works;
	struct net_timer *timer;
	struct key_reading *reading;
	void (*changed)(struct control *control);
	int error;              /* of the last reading */
	uint64_t asked, obeyed; /* SIGHUPs */
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

static SSL_CTX *secure_ctx_new(struct secure *secure)
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

bool secure_proven(struct ssl_st *ssl, char why[SECURE_WHY_BYTES])
{
	if (SSL_session_reused(ssl) &&
		key_valid(&secure_of(ssl)->file, (uintptr_t)SSL_get_app_data(ssl)))
		return true;
	snprintf(why, SECURE_WHY_BYTES, "its key is no longer in cluster.psk_file");
	return false;
}

static const char *failed_accept(const SSL *ssl, int reason)
{
	if (reason == SSL_R_BINDER_DOES_NOT_VERIFY)
		return "it names the key of this engine and does not have it";
	if ((uintptr_t)SSL_get_app_data(ssl) == KEY_UNKNOWN)
		return "its key is not in cluster.psk_file here: make the file the same on all engines";
	if ((uintptr_t)SSL_get_app_data(ssl) == 0)
		return "it offers no key: this cluster takes only engines with its cluster.psk_file";
	return ERR_reason_error_string(ERR_PACK(ERR_LIB_SSL, 0, reason));
}

bool secure_failed(struct ssl_st *ssl, char why[SECURE_WHY_BYTES])
{
	int reason = ERR_GET_REASON(ERR_peek_error()), alert = reason - SSL_AD_REASON_OFFSET;
	bool plain = reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
		     reason == SSL_R_HTTPS_PROXY_REQUEST || reason == SSL_R_BAD_RECORD_TYPE;
	const char *text = NULL;

	if (plain)
		snprintf(why, SECURE_WHY_BYTES,
			"it speaks no TLS: it is an engine without cluster.psk_file, or no engine");
	else if (alert == SSL_AD_PROTOCOL_VERSION)
		snprintf(why, SECURE_WHY_BYTES,
			"it takes clear text only: set cluster.psk_file there, too");
	else if (alert > 0)
		snprintf(why, SECURE_WHY_BYTES,
			"it refuses the key of this engine (%s): make cluster.psk_file the same on all engines",
			SSL_alert_desc_string_long(alert));
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

/* ---- reading the file again ------------------------------------------------------------------ */

static void keys_take(struct secure *secure, const struct psk_file *file)
{
	secure->file = *file;
	snprintf(secure->identity, sizeof(secure->identity), "%016" PRIx64, file->key[0].id);
	log_info("cluster.psk_file: %u key%s, links are dialled with %s", file->count,
		file->count == 1 ? "" : "s", secure->identity);
}

static void key_reading_run(struct work *work, unsigned part)
{
	struct key_reading *reading = (struct key_reading *)work;

	(void)part;
	reading->file.version = reading->known;
	reading->status = psk_file_read(reading->path, &reading->file, reading->why);
}

static void key_reading_free(struct key_reading *reading)
{
	if (reading)
		OPENSSL_cleanse(&reading->file, sizeof(reading->file));
	free(reading);
}

static void key_reading_done(struct work *work)
{
	struct key_reading *reading = (struct key_reading *)work;
	struct secure *secure = reading->control->secure;

	secure->reading = NULL;
	if (reading->status < 0 && reading->status != secure->error)
		log_error("%s. The keys that it had are kept, and it is read again every second",
			reading->why);
	if (reading->status <= 0)
		secure->error = reading->status;
	if (reading->status == 0) {
		keys_take(secure, &reading->file);
		if (secure->changed)
			secure->changed(secure->control);
	}
	key_reading_free(reading);
}

static void keys_look(void *context)
{
	struct secure *secure = context;
	uint64_t asked = shm_load64(&secure->asked);
	struct key_reading *reading;

	if (secure->reading)
		return;
	reading = calloc(1, sizeof(*reading));
	if (!reading)
		return;
	reading->work.run = key_reading_run;
	reading->work.done = key_reading_done;
	reading->control = secure->control;
	reading->path = secure->control->settings->cluster_psk_file;
	if (asked == secure->obeyed)
		reading->known = secure->file.version;
	secure->obeyed = asked;
	secure->reading = reading;
	work_submit(secure->works, 0, &reading->work);
}

void secure_watch(struct control *control, void (*changed)(struct control *control))
{
	if (control->secure)
		control->secure->changed = changed;
}

void secure_reload(struct control *control)
{
	if (control->secure)
		shm_count(&control->secure->asked, 1);
}

/* ---- open and close -------------------------------------------------------------------------- */

const char *secure_word(const struct control *control)
{
	return control->secure ? "key" : "none";
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
	if (s->cluster_security == SECURITY_REQUIRED && !s->cluster_psk_file[0]) {
		log_error(
			"cluster.security = required, but cluster.psk_file is not set: make a key with peercachectl keygen, and give it to all engines");
		return -EINVAL;
	}
	if (s->cluster_security == SECURITY_NONE && s->cluster_psk_file[0]) {
		log_error(
			"cluster.security = none, but cluster.psk_file is set: take one of them out");
		return -EINVAL;
	}
	return s->cluster_psk_file[0] != '\0';
}

static int keys_read(const struct settings *s, struct psk_file *ret)
{
	char why[PSK_WHY_BYTES];
	int status = psk_file_read(s->cluster_psk_file, ret, why);

	if (status < 0)
		log_error("%s", why);
	return status;
}

int secure_check(struct control *control)
{
	struct psk_file file = {0};
	int status = secure_wanted(control->settings);

	if (status > 0)
		status = keys_read(control->settings, &file);
	OPENSSL_cleanse(&file, sizeof(file));
	return status;
}

/* No core dump has this memory; that of OpenSSL has secrets made of the key. */
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

int secure_open(struct control *control)
{
	struct psk_file file = {0};
	struct secure *secure;
	int status = secure_wanted(control->settings);

	if (secure_missing(control))
		log_warn(
			"links between engines are in clear text, and any process that reaches port %d can join and change pages. Set cluster.psk_file on all engines (peercachectl keygen makes the file), or cluster.security = none if only engines reach that port",
			(int)control->settings->cluster_port);
	if (status <= 0)
		return status;
	status = keys_read(control->settings, &file);
	if (status < 0)
		return status;
	secure = secure_new(control);
	if (!secure)
		return -ENOMEM;
	keys_take(secure, &file);
	OPENSSL_cleanse(&file, sizeof(file));
	secure->ctx = secure_ctx_new(secure);
	secure->timer = net_timer_new(control->base, true, keys_look, secure);
	status = secure->ctx && secure->timer ? 0 : -ENOMEM;
	if (status == 0)
		status = works_open(control->base,
			&(struct works_options){
				.name = "pc-keys", .queues = 1, .threads = 1, .limit_s = 10},
			&secure->works);
	if (status == 0 && net_timer_set(secure->timer, SECURE_PERIOD_US) < 0)
		status = -ENOMEM;
	if (status < 0)
		secure_close(control);
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
	OPENSSL_cleanse(secure, sizeof(*secure));
	munmap(secure, sizeof(*secure));
	control->secure = NULL;
}
