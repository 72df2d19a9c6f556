/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine for tests of the client library alone: a thread that serves the attach socket with real
 * memfds and plays rails and control plane by hand, through the real rings. Two rails; a cluster of
 * three: itself and two other nodes whose memory it keeps as plain arrays.
 *
 * Tests change its state under `lock`, which the thread holds while it works.
 */
#ifndef TESTS_CLIENT_FAKE_H
#define TESTS_CLIENT_FAKE_H

#include <pthread.h>

#include "engine/client/client.h"

#define FAKE_NAME_BYTES 64
#define FAKE_RAILS 2u
#define FAKE_BITS 10u
#define FAKE_POOL_BYTES (64u << 20)
#define FAKE_UNITS (FAKE_POOL_BYTES / PAGE_UNIT)
#define FAKE_CHANNELS 8
#define FAKE_SELF 0u
#define FAKE_A 1u
#define FAKE_B 2u
#define FAKE_NODES 3u
#define FAKE_REF(node) (0x1001u * ((node) + 1))

struct fake_node {
	struct bucket *shard;
	unsigned char *pool[FAKE_RAILS];
	struct page_head *heads[FAKE_RAILS];
	uint32_t units_used[FAKE_RAILS];
};

struct fake_channel {
	bool used;
	int wake, wake_client; /* both ends */
	int memfd;
	unsigned char *base;
	struct ring_consumer ops[FAKE_RAILS];
	struct ring_producer done[FAKE_RAILS];
	struct ring_consumer ctl;
	struct ring_producer ctl_done;
};

struct fake_region {
	unsigned char *base; /* NULL: free */
	uint64_t bytes;
};

/* What a hook answers: a status, or one of these. */
#define FAKE_DO 1000u   /* what a good engine does */
#define FAKE_HOLD 1001u /* no answer, until fake_answer_held() */

struct fake;
typedef uint32_t fake_op_hook(struct fake *f, uint32_t rail, const struct op *op);
typedef uint32_t fake_ctl_hook(struct fake *f, const struct ctl_op *op);

struct fake {
	char path[108];
	pthread_t thread;
	pthread_mutex_t lock;
	bool stop;
	int listener;
	int connection; /* -1: none; one client process is enough */
	uint16_t version;
	uint64_t rails_said; /* in HELLO */
	int status_fd, shard_fd, pool_fd[FAKE_RAILS], heads_fd[FAKE_RAILS];
	int control_kick, kick[FAKE_RAILS];
	struct status_segment *status;
	struct fake_node node[FAKE_NODES];
	struct fake_channel channel[FAKE_CHANNELS];
	struct fake_region region[REGIONS_MAX];
	struct map_view map, previous;
	uint32_t refuse_regions; /* errno to refuse REGION_ADD with */
	int pidfd;               /* in HELLO; -1: none */
	bool mute;               /* connections are accepted, requests are not read */
	bool no_drain;           /* `drained` is not stored when the connection ends */
	bool surplus;            /* CHANNEL_OPEN: more descriptors than a reply may carry */
	bool bad_channels;       /* CHANNEL_OPEN: a segment of another version */
	bool stall_regions;      /* REGION_ADD is answered when this is false again */

	fake_op_hook *on_op;
	fake_ctl_hook *on_ctl;
	bool no_sleep; /* rails never sleep: kicks are not needed */
	uint32_t credits_left;
	struct {
		struct fake_channel *channel;
		uint32_t rail;
		struct op op;
		struct op_segment segment[SEGMENTS_MAX];
	} held[64];
	unsigned held_count;
	bool stalled; /* by stall_regions */
	struct attach_request stalled_request;
	int stalled_fd;

	/* what was seen */
	unsigned hellos, reads, pages[FAKE_RAILS], touches, stales, returned, publishes, removes;
	unsigned regions_added, regions_removed, kicked, closes;
	unsigned segments_max, in_flight_max;
	struct ctl_op last_stale;
};

void fake_start(struct fake *f);
void fake_stop(struct fake *f);
/* Closes everything the client is attached to; fake_revive() listens again, memory kept. */
void fake_die(struct fake *f);
void fake_revive(struct fake *f);

/* The key of `name` in the namespace the tests use. */
struct page_key fake_key(const char *name);
/* Writes the entry into the shards of the key's owners; `only` < FAKE_NODES: into that one alone.
 */
void fake_insert(
	struct fake *f, const struct page_key *key, uint32_t only, const struct dir_entry *entry);
/* A page of `bytes` bytes on `node`, published and in the directory. Returns its place. */
uint32_t fake_page(struct fake *f, const char *name, uint32_t node, uint32_t rail, uint32_t bytes);
struct page_head *fake_head(struct fake *f, uint32_t node, uint32_t place);
/* The byte that fake_page() puts at `at`. */
unsigned char fake_byte(const char *name, uint32_t at);
/* The first owner of a key. */
uint32_t fake_owner(struct fake *f, const char *name);
/* Names "<stem>-<n>", n from *at on, until one is owned by `node`. */
void fake_name_owned(struct fake *f, const char *stem, uint32_t node, unsigned *at,
	char ret_name[FAKE_NAME_BYTES]);
/* Writes the map again: `members` of FAKE_NODES nodes live, `moved` as the previous one. */
void fake_map(struct fake *f, unsigned members, uint32_t replicas, bool keep_previous);
void fake_answer_held(struct fake *f);
/* Every rail has returned the channel. */
void fake_drain(struct fake_channel *channel);
void fake_wake(struct fake_channel *channel);
void fake_lock(struct fake *f);
void fake_unlock(struct fake *f);

#endif
