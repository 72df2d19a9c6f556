/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The certificates of an engine (cluster.tls_dir): what it believes and what it shows. In the
 * folder, PEM:
 *   ca.pem    the CAs whose certificates belong to the cluster
 *   cert.pem  the certificate of this engine, then those between it and a CA
 *   key.pem   its key
 *   crl.pem   optional: a CRL of each CA that signs engines; without one of its CA none is believed
 *   deny      optional: URIs or serial numbers that are refused, one in a line, # starts a comment
 *
 * An engine is named by a URI among the alternative names of its certificate:
 * peercache:CLUSTER/NAME, with cluster.id and engine.name as they are. Any thread.
 */
#ifndef CONFIG_CERTIFICATES_H
#define CONFIG_CERTIFICATES_H

#include <openssl/x509.h>
#include <stdbool.h>
#include <stdint.h>

#define CERTIFICATES_WHY_BYTES 400
#define CERTIFICATES_DEPTH 3 /* certificates between that of an engine and a CA */

struct certificates {
	X509_STORE *store;
	X509 *own;
	STACK_OF(X509) * chain; /* behind it */
	EVP_PKEY *key;
	char *denied;   /* the text of the list; NULL: there is none */
	int64_t ends_s; /* Unix time: the first of its certificates, or a CRL, ends */
};

/* Another number when a file of the folder has changed. */
uint64_t certificates_version(const char *folder);
/*
 * Reads the folder. Returns 0, or -errno and `why` has a line with the remedy. Files that others
 * may change, a key that others may read or that is not that of the certificate, and a certificate
 * that no other engine would believe are refused.
 */
int certificates_read(
	const char *folder, struct certificates **ret, char why[CERTIFICATES_WHY_BYTES]);
/* NULL is ignored. */
void certificates_free(struct certificates *certificates);

/*
 * Why an engine with this certificate is refused now; NULL: it is not. `chain`: what it has sent
 * with it; `accepted`: it has dialled.
 */
const char *certificate_wrong(const struct certificates *certificates, X509 *certificate,
	STACK_OF(X509) * chain, bool accepted);
/* Whether the list refuses it. */
bool certificate_denied(const struct certificates *certificates, const X509 *certificate);
/* Whether it is one of that engine. */
bool certificate_names(const X509 *certificate, const char *cluster, const char *name);
/* Unix time of its end. */
int64_t certificate_ends_s(const X509 *certificate);

#endif
