/* SPDX-License-Identifier: Apache-2.0 */
/* The certificates of an engine: reading the folder and asking OpenSSL's verifier. Any thread. */
#include "config/certificates.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/secret_file.h"

#define FILE_BYTES_MAX (1u << 20)
#define PATH_BYTES 1040
#define URI_START "peercache:"
#define AUTH_LEVEL 2 /* of OpenSSL: keys and signatures of 112 bits, as TLS asks */

/* What is being read. */
struct reading {
	const char *folder;
	char *why;
	char *text; /* FILE_BYTES_MAX, of the present file */
	int bytes;
};

__attribute__((format(printf, 3, 4))) static int refused(
	const struct reading *r, const char *file, const char *format, ...)
{
	int used = snprintf(
		r->why, CERTIFICATES_WHY_BYTES, "cluster.tls_dir %.150s: %s: ", r->folder, file);
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(r->why + used, CERTIFICATES_WHY_BYTES - (size_t)used, format, arguments);
	va_end(arguments);
	ERR_clear_error();
	return -EINVAL;
}

static const char *reason(void)
{
	const char *text = ERR_reason_error_string(ERR_peek_last_error());

	return text ? text : "there is none in it";
}

/* ---- the parts ------------------------------------------------------------------------------- */

/* Takes all certificates of the present file: the first as `own`, if that is wanted. */
static int chain_take(const struct reading *r, struct certificates *c, bool own)
{
	BIO *memory = BIO_new_mem_buf(r->text, r->bytes);
	unsigned count = 0;
	X509 *one;

	while (memory && (one = PEM_read_bio_X509(memory, NULL, NULL, NULL)) != NULL) {
		bool kept = true;

		if (!own)
			kept = X509_STORE_add_cert(c->store, one) == 1;
		else if (count == 0)
			c->own = one;
		else
			kept = sk_X509_push(c->chain, one) > 0;
		if (!own || !kept)
			X509_free(one);
		count += kept;
	}
	BIO_free(memory);
	if (!count)
		return refused(r, own ? "cert.pem" : "ca.pem", "no certificate: %s", reason());
	ERR_clear_error();
	return 0;
}

static int ca_take(const struct reading *r, struct certificates *c)
{
	return chain_take(r, c, false);
}

static int cert_take(const struct reading *r, struct certificates *c)
{
	return chain_take(r, c, true);
}

static int key_take(const struct reading *r, struct certificates *c)
{
	BIO *memory = BIO_new_mem_buf(r->text, r->bytes);

	c->key = memory ? PEM_read_bio_PrivateKey(memory, NULL, NULL, (void *)"") : NULL;
	BIO_free(memory);
	if (!c->key)
		return refused(r, "key.pem", "no key without a password: %s", reason());
	if (X509_check_private_key(c->own, c->key) != 1)
		return refused(r, "key.pem", "it is not the key of cert.pem");
	return 0;
}

static int64_t time_s(const ASN1_TIME *time)
{
	struct tm tm;

	return ASN1_TIME_to_tm(time, &tm) == 1 ? timegm(&tm) : 0;
}

static int lists_take(const struct reading *r, struct certificates *c)
{
	BIO *memory = BIO_new_mem_buf(r->text, r->bytes);
	unsigned count = 0;
	X509_CRL *one;

	while (memory && (one = PEM_read_bio_X509_CRL(memory, NULL, NULL, NULL)) != NULL) {
		const ASN1_TIME *next = X509_CRL_get0_nextUpdate(one);

		if (next && time_s(next) < c->ends_s)
			c->ends_s = time_s(next);
		count += X509_STORE_add_crl(c->store, one) == 1;
		X509_CRL_free(one);
	}
	BIO_free(memory);
	if (!count)
		return refused(r, "crl.pem", "no CRL: %s", reason());
	ERR_clear_error();
	return X509_STORE_set_flags(c->store, X509_V_FLAG_CRL_CHECK) == 1 ? 0 : -ENOMEM;
}

/* The next word of the list, and its bytes; NULL: there is none. */
static const char *denied_next(const char **at, size_t *ret_bytes)
{
	while (**at) {
		const char *line = *at + strspn(*at, " \t\r");

		*at += strcspn(*at, "\n");
		*at += **at == '\n';
		*ret_bytes = strcspn(line, " \t\r\n#");
		if (*ret_bytes)
			return line;
	}
	return NULL;
}

/* A word that refuses none is a mistake, which would be believed to refuse one. */
static int denied_take(const struct reading *r, struct certificates *c)
{
	const char *at = r->text, *word;
	size_t bytes;

	while ((word = denied_next(&at, &bytes)) != NULL) {
		if (!strncmp(word, URI_START, strlen(URI_START)) ||
			strspn(word, "0123456789abcdefABCDEF") >= bytes)
			continue;
		return refused(r, "deny",
			"%.*s is neither peercache:CLUSTER/NAME nor a serial number in hexadecimal digits, as openssl x509 -serial prints it",
			(int)(bytes < 64 ? bytes : 64), word);
	}
	c->denied = strdup(r->text);
	return c->denied ? 0 : -ENOMEM;
}

/* ---- questions ------------------------------------------------------------------------------- */

static bool denied_has(const struct certificates *c, const char *text, size_t length)
{
	const char *at = c->denied, *word;
	size_t bytes;

	while (at && (word = denied_next(&at, &bytes)) != NULL)
		if (bytes == length && !strncasecmp(word, text, length))
			return true;
	return false;
}

/* Calls `call` with each URI of the certificate until it returns true. */
static bool uri_any(const X509 *certificate,
	bool (*call)(const void *context, const char *uri, size_t bytes), const void *context)
{
	GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
	bool found = false;

	for (int i = 0; names && i < sk_GENERAL_NAME_num(names) && !found; i++) {
		const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);

		if (name->type == GEN_URI)
			found = call(context,
				(const char *)ASN1_STRING_get0_data(
					name->d.uniformResourceIdentifier),
				(size_t)ASN1_STRING_length(name->d.uniformResourceIdentifier));
	}
	GENERAL_NAMES_free(names);
	return found;
}

static bool uri_denied(const void *context, const char *uri, size_t bytes)
{
	return denied_has(context, uri, bytes);
}

bool certificate_denied(const struct certificates *c, const X509 *certificate)
{
	BIGNUM *number;
	char *serial;
	bool denied;

	if (!c->denied)
		return false;
	number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), NULL);
	serial = number ? BN_bn2hex(number) : NULL;
	denied = !serial || denied_has(c, serial, strlen(serial)) ||
		 uri_any(certificate, uri_denied, c);
	OPENSSL_free(serial);
	BN_free(number);
	return denied;
}

static bool uri_is(const void *context, const char *uri, size_t bytes)
{
	return strlen(context) == bytes && memcmp(context, uri, bytes) == 0;
}

bool certificate_names(const X509 *certificate, const char *cluster, const char *name)
{
	char uri[1024];
	int bytes = snprintf(uri, sizeof(uri), URI_START "%s/%s", cluster, name);

	return bytes > 0 && bytes < (int)sizeof(uri) && uri_any(certificate, uri_is, uri);
}

int64_t certificate_ends_s(const X509 *certificate)
{
	return time_s(X509_get0_notAfter(certificate));
}

/* *ret_ends_s: lowered to the first end of the certificates up to the CA; NULL: it is not asked. */
static const char *certificate_verify(const struct certificates *c, X509 *certificate,
	STACK_OF(X509) * chain, bool accepted, int64_t *ret_ends_s)
{
	X509_STORE_CTX *ctx = X509_STORE_CTX_new();
	const char *wrong = "no memory";

	if (ctx && X509_STORE_CTX_init(ctx, c->store, certificate, chain) == 1 &&
		X509_STORE_CTX_set_default(ctx, accepted ? "ssl_client" : "ssl_server") == 1) {
		X509_STORE_CTX_set_depth(ctx, CERTIFICATES_DEPTH);
		X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(ctx), AUTH_LEVEL);
		wrong = X509_verify_cert(ctx) == 1
				? NULL
				: X509_verify_cert_error_string(X509_STORE_CTX_get_error(ctx));
	}
	for (int i = 0; !wrong && ret_ends_s && i < sk_X509_num(X509_STORE_CTX_get0_chain(ctx));
		i++) {
		int64_t ends_s =
			certificate_ends_s(sk_X509_value(X509_STORE_CTX_get0_chain(ctx), i));

		*ret_ends_s = ends_s < *ret_ends_s ? ends_s : *ret_ends_s;
	}
	X509_STORE_CTX_free(ctx);
	ERR_clear_error();
	return wrong;
}

const char *certificate_wrong(
	const struct certificates *c, X509 *certificate, STACK_OF(X509) * chain, bool accepted)
{
	if (certificate_denied(c, certificate))
		return "it is on the list deny of cluster.tls_dir";
	return certificate_verify(c, certificate, chain, accepted, NULL);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* In the order in which they are read. */
static const struct {
	const char *name;
	mode_t modes;
	bool optional;
	int (*take)(const struct reading *r, struct certificates *c);
} file_of[] = {
	{"ca.pem", TRUSTED_MODES, false, ca_take},
	{"cert.pem", TRUSTED_MODES, false, cert_take},
	{"key.pem", SECRET_MODES, false, key_take},
	{"crl.pem", TRUSTED_MODES, true, lists_take},
	{"deny", TRUSTED_MODES, true, denied_take},
};
#define FILES (sizeof(file_of) / sizeof(file_of[0]))

uint64_t certificates_version(const char *folder)
{
	char path[FILES][PATH_BYTES];
	const char *at[FILES];

	for (unsigned i = 0; i < FILES; i++) {
		snprintf(path[i], PATH_BYTES, "%s/%s", folder, file_of[i].name);
		at[i] = path[i];
	}
	return files_version(at, FILES);
}

/* 1: it was read; 0: it is not there and need not be; or -errno. */
static int file_read(struct reading *r, unsigned file)
{
	char path[PATH_BYTES];
	const char *wrong;

	snprintf(path, sizeof(path), "%s/%s", r->folder, file_of[file].name);
	r->bytes = owned_file_read(path, file_of[file].modes, r->text, FILE_BYTES_MAX, &wrong);
	if (r->bytes == -ENOENT && file_of[file].optional)
		return 0;
	if (r->bytes < 0)
		return refused(r, file_of[file].name, "%s", wrong);
	r->text[r->bytes] = '\0';
	return 1;
}

/* Would another engine with the same files believe this one, dialled and dialling? */
static int own_check(const struct reading *r, struct certificates *c)
{
	const char *wrong = certificate_verify(c, c->own, c->chain, true, &c->ends_s);

	if (!wrong)
		wrong = certificate_verify(c, c->own, c->chain, false, NULL);
	if (wrong)
		return refused(r, "cert.pem", "other engines refuse it: %s", wrong);
	if (certificate_denied(c, c->own))
		return refused(r, "cert.pem", "it is on the list deny");
	return 0;
}

/* Who may write there can put links to files of root there; in a sticky folder only own files. */
static int folder_check(const struct reading *r)
{
	struct stat st;

	if (stat(r->folder, &st) < 0)
		return refused(r, ".", "%s", strerror(errno));
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return refused(r, ".", "it belongs to another user, who can change it");
	if (st.st_mode & TRUSTED_MODES && !(st.st_mode & S_ISVTX))
		return refused(r, ".", "other users may change it: chmod 755");
	return 0;
}

static int files_take(struct reading *r, struct certificates *c)
{
	int status = folder_check(r);

	for (unsigned file = 0; file < FILES && status >= 0; file++) {
		status = file_read(r, file);
		if (status > 0)
			status = file_of[file].take(r, c);
	}
	return status < 0 ? status : own_check(r, c);
}

int certificates_read(
	const char *folder, struct certificates **ret, char why[CERTIFICATES_WHY_BYTES])
{
	struct reading r = {.folder = folder, .why = why, .text = malloc(FILE_BYTES_MAX + 1)};
	struct certificates *c = calloc(1, sizeof(*c));
	int status = -ENOMEM;

	snprintf(why, CERTIFICATES_WHY_BYTES, "cluster.tls_dir: no memory");
	if (c) {
		c->store = X509_STORE_new();
		c->chain = sk_X509_new_null();
		c->ends_s = INT64_MAX;
	}
	if (c && c->store && c->chain && r.text)
		status = files_take(&r, c);
	if (r.text)
		OPENSSL_cleanse(r.text, FILE_BYTES_MAX);
	free(r.text);
	if (status == 0)
		*ret = c;
	else
		certificates_free(c);
	return status;
}

void certificates_free(struct certificates *c)
{
	if (!c)
		return;
	X509_STORE_free(c->store);
	X509_free(c->own);
	sk_X509_pop_free(c->chain, X509_free);
	EVP_PKEY_free(c->key);
	free(c->denied);
	free(c);
}
