/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the directory: batches that reach their owner through another member, because their
 * holder has no connection with it. Control plane's thread only.
 */
#ifndef CONTROL_DIRECTORY_RELAY_H
#define CONTROL_DIRECTORY_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/abi/message.pb-c.h"

struct directory;
struct owner;
struct rpc_link;

/* Limits on relays of other engines that this engine has passed on and that are not answered. */
#define PASSES_MAX 1024     /* in all */
#define PASSES_LINK_MAX 256 /* of one holder */
#define RELAY_TRIES_MAX 8   /* members that are tried for one owner between two heartbeats */

/* A relay of another engine that was passed to its owner. */
struct pass {
	LIST_ENTRY(pass) next;
	struct rpc_link *from; /* to answer on; NULL: it has closed */
	struct rpc_link *to;
	uint64_t serial_from, serial_to;
	uint64_t sent_ns;
	size_t count; /* of entries */
};

/* ---- directory_relay.c ----------------------------------------------------------------------- */

/* Sends the next batch for an owner that has no link to a member that may have one. */
void relay_send(struct directory *directory, struct owner *owner);
/* Called while the owner owes an answer: gives up a relay that is late, sends one that is due. */
void relay_look(struct directory *directory, struct owner *owner, uint64_t now_ns);
/* Ends the owner's relay, which there is; returns its batch. */
struct batch *relay_end(struct directory *directory, struct owner *owner);
/* Takes back the relay that was sent over this link; NULL: over any. */
void relay_rewind(struct directory *directory, struct owner *owner, const struct rpc_link *link);

/* ---- directory_pass.c ------------------------------------------------------------------------ */

/* The link has closed, or the directory is: relays that need it are refused. NULL: all links. */
void passes_drop(struct directory *directory, const struct rpc_link *link);
/* Refuses relays that their owner does not answer: their holder has given them up. */
void passes_tick(struct directory *directory, uint64_t now_ns);
/* Serves a Relayed of an owner. False: it answers no relay that was passed on. */
bool pass_answered(
	struct directory *directory, const struct rpc_link *link, const Pc__Relayed *relayed);

#endif
