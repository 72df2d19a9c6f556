/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl tls-example: a CA for tests, and for each engine a folder for cluster.tls_dir. One
 * thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/common.h"
#include "tools/ctl.h"

#define DAYS 365
#define PATH_BYTES 4096

struct issuer {
	X509 *certificate;
	EVP_PKEY *key;
};

static FILE *example_file(const char *folder, const char *name, mode_t mode)
{
	char path[PATH_BYTES];
	int fd;

	if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
		die("%s: too long", folder);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0)
		die("%s: %s; files are not overwritten: give a new folder", path, strerror(errno));
	return fdopen(fd, "w");
}

static void example_write(
	const char *folder, const char *name, mode_t mode, X509 *certificate, const EVP_PKEY *key)
{
	FILE *file = example_file(folder, name, mode);

	if (!file || (certificate && PEM_write_X509(file, certificate) != 1) ||
		(key && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) != 1) ||
		fclose(file) != 0)
		die("%s/%s: it cannot be written", folder, name);
}

static bool extension_add(X509V3_CTX *ctx, X509 *certificate, int kind, const char *value)
{
	X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, ctx, kind, value);
	bool good = extension && X509_add_ext(certificate, extension, -1) == 1;

	X509_EXTENSION_free(extension);
	return good;
}

/* `uri` NULL: a CA. `by` NULL: itself. */
static struct issuer example_make(const char *name, const char *uri, const struct issuer *by)
{
	struct issuer made = {X509_new(), EVP_EC_gen("P-256")};
	unsigned char serial[4];
	char common[65];
	X509 *x = made.certificate;
	X509V3_CTX ctx;

	snprintf(common, sizeof(common), "%.64s", name);
	if (!by)
		by = &made;
	X509V3_set_ctx(&ctx, by->certificate, x, NULL, NULL, 0);
	if (!x || !made.key || RAND_bytes(serial, sizeof(serial)) != 1 ||
		X509_set_version(x, X509_VERSION_3) != 1 ||
		ASN1_INTEGER_set_uint64(X509_get_serialNumber(x),
			1ull << 32 | (uint64_t)serial[0] << 24 | serial[1] << 16 | serial[2] << 8 |
				serial[3]) != 1 ||
		!X509_gmtime_adj(X509_getm_notBefore(x), -3600) ||
		!X509_gmtime_adj(X509_getm_notAfter(x), DAYS * 86400L) ||
		X509_set_pubkey(x, made.key) != 1 ||
		X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_UTF8,
			(const unsigned char *)common, -1, -1, 0) != 1 ||
		X509_set_issuer_name(x, X509_get_subject_name(by->certificate)) != 1 ||
		!extension_add(&ctx, x, NID_basic_constraints,
			uri ? "critical,CA:FALSE" : "critical,CA:TRUE") ||
		!extension_add(&ctx, x, NID_key_usage,
			uri ? "critical,digitalSignature" : "critical,keyCertSign,cRLSign") ||
		(uri && (!extension_add(&ctx, x, NID_ext_key_usage, "serverAuth,clientAuth") ||
				!extension_add(&ctx, x, NID_subject_alt_name, uri))) ||
		X509_sign(x, by->key, EVP_sha256()) == 0)
		die("the certificate of %s cannot be made", name);
	return made;
}

static void issuer_free(struct issuer *issuer)
{
	X509_free(issuer->certificate);
	EVP_PKEY_free(issuer->key);
}

static void folder_make(const char *path)
{
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		die("%s: %s", path, strerror(errno));
}

int ctl_tls_example(
	const struct ctl_run *ctl, const char *folder, const char *cluster, int names, char **name)
{
	struct issuer ca = example_make("PeerCache test CA", NULL, NULL);

	(void)ctl;
	folder_make(folder);
	example_write(folder, "ca.pem", 0644, ca.certificate, NULL);
	example_write(folder, "ca-key.pem", 0600, NULL, ca.key);
	for (int i = 0; i < names; i++) {
		char path[PATH_BYTES], uri[PATH_BYTES];
		struct issuer engine;

		/* a comma or a blank would begin another alternative name */
		if (strpbrk(name[i], "/, \\\"") || strpbrk(cluster, "/, \\\""))
			die("%s/%s: no name for an example", cluster, name[i]);
		snprintf(path, sizeof(path), "%.2000s/%.1000s", folder, name[i]);
		snprintf(uri, sizeof(uri), "URI:peercache:%.1000s/%.1000s", cluster, name[i]);
		engine = example_make(name[i], uri, &ca);
		folder_make(path);
		example_write(path, "ca.pem", 0644, ca.certificate, NULL);
		example_write(path, "cert.pem", 0644, engine.certificate, NULL);
		example_write(path, "key.pem", 0600, NULL, engine.key);
		printf("%s: cluster.tls_dir of %s in the cluster %s, for %d days\n", path, name[i],
			cluster, DAYS);
		issuer_free(&engine);
	}
	printf("%s/ca-key.pem signs further ones; it is for tests\n", folder);
	issuer_free(&ca);
	return 0;
}
