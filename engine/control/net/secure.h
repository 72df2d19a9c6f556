/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may talk to this engine: TLS 1.3 on the links between engines, with a pre-shared key
 * (cluster.psk_file) or with certificates (cluster.tls_dir). A helper thread reads the files again
 * when they have changed, or when SIGHUP came; links whose key or certificate is no longer good are
 * closed. Control plane's thread only.
 *
 * A key proves that the other end belongs to the cluster, not its name. Both ends of a link have
 * the same key, so a message can come back to its sender: the Hello behind the handshake has the
 * sender's incarnation, and an engine takes no link with itself (RFC 9257, section 4.1).
 */
#ifndef CONTROL_SECURE_H
#define CONTROL_SECURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct control;
struct ssl_st;
struct ssl_ctx_st;

#define SECURE_WHY_BYTES 200
/* limit of the bytes that a handshake takes from the other end, whatever it sends */
#define SECURE_HANDSHAKE_BYTES (64u << 10)
#define SECURE_FIRST_BYTES 4096 /* the same of its first message, which has about 250 */
/*
 * The bytes of a TLS alert in clear text, protocol_version: one end of a link has a key, the other
 * one has none. The end that gets it can log that.
 */
#define SECURE_CLEAR_ALERT                                                                         \
	{                                                                                          \
		0x15, 3, 1, 0, 2, 2, 70                                                            \
	}

/*
 * Reads what the settings name. control->secure is NULL: links are in clear text. Returns 0 or
 * -errno after logging.
 */
int secure_open(struct control *control);
void secure_close(struct control *control);
/* For --check: what secure_open() would say. */
int secure_check(struct control *control);
/* Reads the files again soon, also if they have not changed. Any thread, and signal handlers. */
void secure_reload(struct control *control);

/*
 * `verify` is called every second and soon after other files were read (`changed`): it asks
 * secure_proven() for each link. True: it is called again soon. NULL: no call.
 */
void secure_watch(struct control *control, bool (*verify)(struct control *control, bool changed));

/* Unix time at which the first of its certificates or CRLs ends; 0: it has none. */
int64_t secure_ends_s(const struct control *control);
/* How links are secured, as a word: "none", "key" or "certificate". Fixed while the engine runs. */
const char *secure_word(const struct control *control);
/* Links with other hosts are in clear text, and no setting says that this is wanted. */
bool secure_missing(const struct control *control);

/* A TLS session for one connection, for net_secure(). NULL: no memory. */
struct ssl_st *secure_session(struct control *control, bool accepted);
/*
 * The handshake has ended well: is the other end one that belongs? Else `why` says why not. With
 * certificates, each verification after other files were read takes one of the budget; with none
 * left the link is not looked at.
 */
bool secure_proven(struct ssl_st *ssl, unsigned *budget, char why[SECURE_WHY_BYTES]);
/* Whether the other end may have that name. A key proves no name. `ssl` NULL: clear text. */
bool secure_names(struct ssl_st *ssl, const char *cluster, const char *name);
/*
 * Why the last call on the session failed, in words. True: what came is no TLS.
 */
bool secure_failed(struct ssl_st *ssl, char why[SECURE_WHY_BYTES]);

/* ---- for other ports, any thread ------------------------------------------------------------- */

/*
 * The context shows the certificates of the file `chain`, which have that key. NULL, or what is
 * wrong with the file *ret_path, one of the two.
 */
const char *secure_files_use(
	struct ssl_ctx_st *ctx, const char *chain, const char *key, const char **ret_path);
/* The newest error of OpenSSL on this thread, in words; all are forgotten. */
const char *secure_reason(void);

#endif
