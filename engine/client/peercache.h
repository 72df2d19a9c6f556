/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpeercache: the client library of PeerCache engine. The public header; pc.h includes it.
 *
 * A process opens one struct pc (a session with the engine of this host) and one struct pc_channel
 * for each thread that moves pages. All calls on a channel come from one thread at a time;
 * different channels are independent. struct pc itself may be used from any thread.
 *
 *   struct pc *pc;
 *   struct pc_channel *ch;
 *   void *memory;
 *
 *   pc_open(&(struct pc_options){.name_space = "llama-70b/bf16"}, &pc);
 *   pc_memory_alloc(pc, 64 << 20, &memory);              READs land here without a copy
 *   pc_channel_open(pc, &ch);
 *
 *   struct pc_segment segment = {memory, 131072};
 *   struct pc_page page = {"0af3...", 64, &segment, 1};
 *   enum pc_result result;
 *
 *   pc_set(ch, &page, 1, 1000, &result);                  PC_HIT: every node can find it now
 *   pc_get(ch, &page, 1, 1000, &result);                  PC_HIT: the bytes are those of the key
 *
 * Errors. Functions that return int give 0 or a negative errno and then pc_error() of the calling
 * thread says what happened and what to do. Calls about pages never fail as a whole once their
 * arguments are sane: each page has its own result, and everything that is not PC_HIT means "not
 * there" to a cache. When the engine dies, calls return with PC_GONE for every page, and the
 * library attaches again when an engine is back. A thread of its own does that, which exists only
 * meanwhile: first the session and the channels, then registered memory, range by range; until its
 * range is registered again, a page is read through staging. The call that starts this thread waits
 * for it, at most a second and half of its time to the deadline; others return PC_GONE.
 *
 * Deadlines are milliseconds from now; 0 means PC_TIMEOUT_MS_DEFAULT. A call returns by its
 * deadline. The one exception is a READ into registered memory that is still in flight: the call
 * returns when the engine has answered or drained it, or when the engine's process has exited. The
 * engine bounds that time, the library does not; it prints one line to stderr after a second. When
 * a call has returned, nothing writes to or reads from its buffers any more.
 *
 * A child of fork() uses nothing of its parent's: it opens a session of its own.
 */
#ifndef PEERCACHE_H
#define PEERCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PC_API __attribute__((visibility("default")))
#define PC_TIMEOUT_MS_DEFAULT 5000u

struct pc;
struct pc_channel;
struct pc_batch;

/* How a page came out. Order is ABI: append only. */
enum pc_result {
	PC_HIT = 0,         /* get: the bytes are there; set: every node can find it; exists */
	PC_MISS = 1,        /* every directory owner of the key says that it is absent */
	PC_STALE = 2,       /* it was taken away while it was read */
	PC_UNREACHABLE = 3, /* the node that has it is dead, or the transfer failed; or not known:
			       an owner of the key could not be asked, the others do not have it */
	PC_TIMEOUT = 4,     /* the deadline passed */
	PC_FULL = 5,        /* set: no room in the pools of this host */
	PC_INVALID = 6, /* the page's arguments: key, lengths, too large, too many segments; a page
			   of another length is stored under the key */
	PC_GONE = 7,    /* no engine */
	PC_PENDING = 8, /* only seen while a submitted batch is under way */
};

/* Text for a result, "hit", "miss", ... */
PC_API const char *pc_result_name(enum pc_result result);
/* Text about the calling thread's last failed call, valid until its next one; never NULL. */
PC_API const char *pc_error(void);
/* The library's version, "0.1.0"; a constant that is never freed. Any thread. */
PC_API const char *pc_version(void);

/* ---- session ------------------------------------------------------------------------------- */

struct pc_options {
	const char *socket;     /* the engine's; NULL: $PEERCACHE_SOCKET, else the default */
	const char *name_space; /* part of every key: model, dtype, layout, ranks; NULL: empty */
	bool no_reattach;       /* an engine that is lost stays lost: PC_GONE until pc_close() */
};

/*
 * Attaches to the engine. -ENOENT or -ECONNREFUSED: none runs there. -EACCES/-EPERM: it belongs to
 * another user. -EPROTO: engine and library are of different versions.
 */
PC_API int pc_open(const struct pc_options *options, struct pc **ret_pc);
/*
 * All channels are closed already. Frees registered and allocated memory; does not wait for the
 * engine, which deregisters it when the session has ended.
 */
PC_API void pc_close(struct pc *pc);
/* Is the session attached now? */
PC_API bool pc_attached(const struct pc *pc);
/* The largest page this host's pools can hold, in bytes. 0 when not attached. */
PC_API uint64_t pc_page_bytes_max(const struct pc *pc);
/* Status and members of the engine as JSON. The text is the caller's: free() it. */
PC_API int pc_report(struct pc *pc, char **ret_json);

/* ---- memory -------------------------------------------------------------------------------- */

/*
 * Memory that READs land in without a copy: allocated here (a memfd), or a mapping of the caller's
 * own memfd from `offset` on. Any other memory works in every call too; it costs one copy through
 * staging. Any thread.
 *
 * Ranges do not overlap (-EEXIST); `base` and `offset` are multiples of 4096 (-EINVAL). The memfd
 * gets F_SEAL_SHRINK: create it with MFD_ALLOW_SEALING, or the engine refuses it. The library keeps
 * a duplicate of it, the caller may close its own. Other errors are the engine's, e.g. -EMFILE: the
 * session has its share of the engine's ranges. While no engine is attached both succeed, and the
 * next one gets the range; what that engine refuses goes through staging.
 *
 *   int fd = memfd_create("kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
 *   ... ftruncate(), mmap(MAP_SHARED) at `kv` ...
 *   pc_memory_register(pc, kv, kv_bytes, fd, 0);
 */
PC_API int pc_memory_alloc(struct pc *pc, size_t bytes, void **ret_memory);
PC_API int pc_memory_register(struct pc *pc, void *base, size_t bytes, int memfd, uint64_t offset);
/*
 * `base` as given or returned above (-ENOENT). -EBUSY: a batch that names it is under way. Returns
 * when the engine does not touch the range any more; memory that was allocated here is unmapped.
 */
PC_API int pc_memory_release(struct pc *pc, void *base);

/* ---- pages --------------------------------------------------------------------------------- */

/*
 * -EBUSY, -ENOSPC, -EMFILE with the engine's text: the engine has no more channels. -EMFILE: this
 * process has no room for two more descriptors. -ETIMEDOUT: no reply within 10 s. None of them ends
 * the session for other channels. Without an engine the call succeeds; the channel waits for one.
 */
PC_API int pc_channel_open(struct pc *pc, struct pc_channel **ret_channel);
/*
 * Batches in flight end, their results are written, and no batch of the channel may be used
 * afterwards. Waits for READs into registered memory as calls do.
 */
PC_API void pc_channel_close(struct pc_channel *channel);

/*
 * The namespace of the channel's calls from now on, instead of the session's
 * (pc_options.name_space); NULL: the session's again. It costs one short hash: one channel may
 * serve many keyspaces.
 *
 *   pc_channel_name_space(ch, "llama-70b/bf16/rank 3");
 */
PC_API int pc_channel_name_space(struct pc_channel *channel, const char *name_space);

/* A piece of the caller's memory. */
struct pc_segment {
	void *base;
	size_t bytes; /* >= 1 */
};

/* A page is one object, gathered from or scattered to its segments in order. */
struct pc_page {
	const void *key; /* any bytes; 1..1024 of them */
	size_t key_bytes;
	const struct pc_segment *segments;
	unsigned segment_count; /* 1..512; pc_exists ignores both */
};

/*
 * Batches of up to 65,536 pages; `count` may be 0. One result per page, in order. A key may stand
 * in a batch twice: get fills both, set stores it once and reports both.
 * Return 0, or -EINVAL for a NULL argument or a count out of range (results are not written then).
 *
 *   get     reads what is there into the segments. On anything but PC_HIT the segments' content is
 *           undefined. The page stored must have exactly the length of the segments together.
 *   set     stores pages in this host's pools and tells the directory. A key present anywhere
 *           already is not copied again and reports PC_HIT.
 *   exists  says whether a page can be found; a hint: a later get may miss. Locations found are
 *           remembered by the channel, so that a get that follows needs no second look-up; exists
 *           and set themselves believe them for a second. What was found counts as read to the
 *           node that holds it (told once a second, and not waited for): eviction takes pages that
 *           nobody asked for first.
 *   remove  takes pages away wherever they are; PC_HIT: it was somewhere, PC_MISS: nowhere.
 */
PC_API int pc_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);
PC_API int pc_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);
PC_API int pc_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);
PC_API int pc_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);

/*
 * The same, submitted: the pages array, its keys, segments and results stay the batch's until it is
 * done. Several batches may be under way on a channel. pc_submit_set() copies the payload before it
 * returns where there is room. Progress is made inside pc_poll() and pc_wait() of any batch of the
 * channel.
 *
 *   struct pc_batch *batch;
 *   pc_submit_get(ch, pages, 128, 1000, results, &batch);
 *   ... other work ...
 *   pc_wait(batch);                                       results are valid, the batch is freed
 */
PC_API int pc_submit_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch);
PC_API int pc_submit_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch);
PC_API int pc_submit_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch);
PC_API int pc_submit_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch);
/* Does what can be done without waiting. True: done, and freed by this call. */
PC_API bool pc_poll(struct pc_batch *batch);
/* Waits until it is done (by its deadline) and frees it. */
PC_API void pc_wait(struct pc_batch *batch);

/* ---- what happened ------------------------------------------------------------------------- */

/* Counts of one channel since it was opened. */
struct pc_counts {
	uint64_t hits_local;  /* pages copied from this host's pools */
	uint64_t hits_remote; /* pages read from another host's */
	uint64_t misses, stale, unreachable, timeouts;
	uint64_t sets;           /* pages stored */
	uint64_t sets_already;   /* pages that were present */
	uint64_t lookups;        /* keys looked up in the directory */
	uint64_t lookups_cached; /* keys whose location the channel still knew */
	uint64_t bytes_read, bytes_written;
	uint64_t bytes_staged; /* of bytes_read, through staging */
	uint64_t reissued;     /* pages asked for once more because a rail failed */
};
PC_API void pc_channel_counts(const struct pc_channel *channel, struct pc_counts *ret_counts);

#ifdef __cplusplus
}
#endif

#endif
