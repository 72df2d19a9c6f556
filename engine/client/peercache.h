/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpeercache: the client library of PeerCache engine. This is its only header.
 *
 * A process opens one struct pc (a session with the engine of this host) and one struct pc_channel
 * for each thread that moves pages. A channel is used by one thread at a time; different channels
 * are independent. Any thread may use struct pc at any time.
 *
 *   struct pc *pc;
 *   struct pc_channel *ch;
 *   void *memory;
 *
 *   pc_open(&(struct pc_options){.name_space = "llama-70b/bf16"}, &pc);
 *   pc_memory_alloc(pc, 64 << 20, &memory);              pc_get() fills it without a copy
 *   pc_channel_open(pc, &ch);
 *
 *   struct pc_segment segment = {memory, 131072};
 *   struct pc_page page = {"0af3...", 64, &segment, 1};
 *   enum pc_result result;
 *
 *   pc_set(ch, &page, 1, 1000, &result);                  PC_HIT: every host can find the page
 *   pc_get(ch, &page, 1, 1000, &result);                  PC_HIT: `memory` holds the page's bytes
 *
 * Errors. A function that returns int returns 0 or a negative errno. After a failure, pc_error() in
 * the same thread tells what happened and what to do. A call about pages fails as a whole only when
 * its arguments are wrong (-EINVAL) or memory is short (-ENOMEM); otherwise each page has its own
 * result, and a cache treats every result except PC_HIT as "not there".
 *
 * Loss of the engine. When the engine dies, calls return PC_GONE for every page that is not done.
 * The library attaches again when an engine is back: a thread of the library, which exists only for
 * that time, opens the session, then the channels, then registers memory range by range. Until a
 * range is registered again, pages destined for it are read through staging. The call that starts
 * this thread waits for it, for at most one second and at most half of the time to its deadline;
 * other calls return PC_GONE.
 *
 * Deadlines are milliseconds from the start of the call; 0 means PC_TIMEOUT_MS_DEFAULT. A call
 * returns by its deadline (an answer is awaited for 10 ms more), with one exception: while an RDMA
 * READ into registered memory is in flight, the call returns only after the engine has completed or
 * drained that READ, or after the engine's process has exited. The engine bounds that time, the
 * library does not; after one second the library prints one line to stderr. When a call has
 * returned, nothing reads or writes its buffers any more.
 *
 * fork(). In the child, sessions and channels of the parent are without an engine for good: calls
 * return PC_GONE, other functions -ENOTCONN, and closing them frees only what the child has of its
 * own. The child opens its own session.
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
#define PC_BATCH_MAX 65536u   /* pages of one call */
#define PC_SEGMENTS_MAX 1024u /* segments of one page */

struct pc;
struct pc_channel;
struct pc_batch;

/* Result of one page. The numbers are ABI: append only. */
enum pc_result {
	/* get: the bytes are in the segments; set: every host of the cluster can find the page;
	 * exists: the page can be found; remove: the page was stored */
	PC_HIT = 0,
	PC_MISS = 1,  /* every directory owner of the key answered that the page is not stored */
	PC_STALE = 2, /* the page was evicted or removed while it was being read */
	/* the holder of the page is dead or the transfer failed; or an owner of the key could
	 * not be asked and the other owners do not have the key */
	PC_UNREACHABLE = 3,
	PC_TIMEOUT = 4, /* the deadline passed before the page's result was known */
	PC_FULL = 5,    /* set: the pools of this host have no room */
	/* the arguments are wrong: key, lengths, number of segments, page too large; or the page
	 * stored under the key has another length */
	PC_INVALID = 6,
	PC_GONE = 7, /* the process is not attached to an engine */
	/* the page is not done; a result has this value only until its submitted batch is done */
	PC_PENDING = 8,
	PC_LONGER = 9, /* pc_get_sized(): the stored page is longer than its segments */
};

/*
 * Name of a result: "hit", "miss", ... Never NULL; "unknown" for other values. The text is static.
 * Any thread.
 */
PC_API const char *pc_result_name(enum pc_result result);
/* What a result means and what to do about it, one sentence; as pc_result_name(). */
PC_API const char *pc_result_text(enum pc_result result);
/*
 * Text about the calling thread's last failed call, or about the last page with PC_INVALID in its
 * last call about pages. Never NULL. Valid until this thread's next call of the library.
 */
PC_API const char *pc_error(void);
/* Version of the library, such as "1.0.0". The text is static. Any thread. */
PC_API const char *pc_version(void);

/* ---- session ------------------------------------------------------------------------------- */

/* Which pages of a get are compared with the CRC32C in their page head. */
enum pc_verify {
	PC_VERIFY_SAMPLE, /* the default: one page in pc_options.verify_one_in, at random */
	PC_VERIFY_NEVER,
	PC_VERIFY_ALWAYS,
};
#define PC_VERIFY_ONE_IN 1000u        /* default of pc_options.verify_one_in */
#define PC_VERIFY_ONE_IN_MAX 1000000u /* its upper limit */

struct pc_options {
	/* path of the engine's Unix socket; NULL: $PEERCACHE_SOCKET, else the default */
	const char *socket;
	/*
	 * text that is hashed into every key: model, dtype, layout, ranks; NULL: empty. The part in
	 * front of its first "||", or all of it, is its group: see pc_clear()
	 */
	const char *name_space;
	/* true: do not attach again; after the engine is lost, calls return PC_GONE until
	 * pc_close() */
	bool no_reattach;
	/*
	 * Which pages are compared after their bytes have arrived, before the call reports them. A
	 * page that differs is a miss and is reported to its holder, which takes a damaged page
	 * out. Costs the time to read the page once more and, for a page of another host, one READ
	 * of its head. A page whose head has no CRC, stored by a client that does not compute it,
	 * is a hit. An engine with rail.validate = crc has all pages compared.
	 */
	unsigned char verify; /* enum pc_verify */
	/* PC_VERIFY_SAMPLE: one page in this number, 1 to PC_VERIFY_ONE_IN_MAX; 0: the default */
	unsigned verify_one_in;
};

/*
 * Attaches to the engine. May block for about 10 s. The caller keeps `options` and its strings, and
 * frees the session with pc_close(). Errors: -ENOENT or -ECONNREFUSED: no engine listens on the
 * socket. -EACCES or -EPERM: the engine belongs to another user. -EPROTO: engine and library are of
 * different versions. -ETIMEDOUT: the engine did not answer. -EINPROGRESS: nor did the next one,
 * which a keeper or systemd is to start: try again, a pause of theirs may take 30 s. -ENOMEM: this
 * process cannot map its memory. -EAGAIN: its backlog of connections stays full.
 */
PC_API int pc_open(const struct pc_options *options, struct pc **ret_pc);
/*
 * The same, with a secret of this tenant: 32 to 64 bytes in a file of mode 0600, without the line
 * feed at its end. All namespaces and groups of the session, also those of pc_channel_name_space()
 * and pc_clear(), are hashed with it (BLAKE2b), so calls of this library find and clear only what
 * was stored with the same secret. NULL: none. The file is read once. -EINVAL: it is missing or
 * wrong.
 *
 *   pc_open_with_secret(&(struct pc_options){.name_space = "llama-70b"}, "/etc/tenant-a", &pc);
 */
PC_API int pc_open_with_secret(
	const struct pc_options *options, const char *secret_file, struct pc **ret_pc);
/*
 * Ends the session. The caller has closed all channels before, and no other thread uses `pc`. Frees
 * registered and allocated memory. Does not wait for the engine, which deregisters that memory when
 * it sees the end of the session. NULL is allowed.
 */
PC_API void pc_close(struct pc *pc);
/* True while the session is attached to a running engine. Any thread; does not block. */
PC_API bool pc_attached(const struct pc *pc);
/*
 * Why pages are PC_GONE although an engine answers: what it answered when the library last tried to
 * attach again, such as another version of the client protocol. "": it did attach, or no engine
 * answered. Any thread; does not block. Valid as the text of pc_error(), which it replaces.
 */
PC_API const char *pc_refusal(const struct pc *pc);
/*
 * The largest page that this host's pools can hold, in bytes; 0 when not attached. Any thread; does
 * not block.
 */
PC_API uint64_t pc_page_bytes_max(const struct pc *pc);
/*
 * Status and members of the engine as JSON. The caller frees *ret_json with free(). Any thread.
 * Errors: -ENOTCONN: no engine. -ETIMEDOUT: no reply within 10 s.
 */
PC_API int pc_report(struct pc *pc, char **ret_json);
/*
 * For peercachectl keys: the keys of all clients of this host since the last call, of exists or,
 * if `gets`, of get. The first call starts the recording, which ends with this session. For each
 * channel a number of words, then these words of struct channel_asked. The caller frees *ret_words
 * with free() and checks each number. Any thread. Errors: -EBUSY: another process records;
 * -ENOTCONN, -ETIMEDOUT: as above.
 */
PC_API int pc_asked(struct pc *pc, bool gets, uint64_t **ret_words, size_t *ret_count);

/* ---- memory -------------------------------------------------------------------------------- */

/*
 * Registered memory: RDMA READs write into it without a copy. pc_memory_alloc() allocates it (a
 * memfd); pc_memory_register() takes a mapping of the caller's own memfd from `offset` on. Every
 * call also accepts any other memory, at the cost of one copy through staging. Any thread. Both may
 * block for minutes while the engine pins a large range; pc_memory_alloc_within() has a time limit.
 * -ETIMEDOUT: the time is over, or the engine has not turned for 10 s.
 *
 * `base` and `offset` are multiples of 4096 bytes (-EINVAL). Ranges do not overlap (-EEXIST). The
 * library seals the memfd with F_SEAL_SHRINK; create it with MFD_ALLOW_SEALING, because the engine
 * refuses an unsealed one. The library keeps a duplicate of the memfd, so the caller may close its
 * own. Other errors come from the engine, for example -EMFILE: the session holds its full share of
 * the engine's ranges. While no engine is attached both calls succeed, and the library registers
 * the range with the next engine; if that engine refuses the range, its pages go through staging.
 *
 * memfd -1: ordinary memory at any address, which the engine's NICs then write to (verbs import).
 * It needs libibverbs and NICs (-EOPNOTSUPP) and engine.client_verbs (-EPERM). The range is pinned;
 * release it before it is unmapped, because the NICs keep the old pages. fork() waits while it is
 * being registered. With kernels before 5.12 a child of fork() does not have the range
 * (ibv_fork_init()); if that is not possible any more, -EOPNOTSUPP.
 *
 * Memory of a GPU is registered in the same way, by its CUDA address, before a call names it. NICs
 * write to it by its dma-buf. Where driver, kernel or NIC have none, the result is 1, pc_error()
 * tells why, and its pages go through pinned staging memory and asynchronous copies.
 * Pages of this host, and sets, are copied by the driver in any case. A copy that fails is
 * PC_INVALID. Kernels that write a page end before its set begins; those that read it start after
 * its get has ended. `memfd` may also be a dma-buf; `base` is its mapping, or its address on a GPU.
 * A call returns when copies that it has begun have ended, as for READs. PC_INVALID: a segment lies
 * only partly in GPU memory, or the batches in flight of a channel have the memory of two GPUs.
 *
 *   int fd = memfd_create("kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
 *   ... ftruncate(), mmap(MAP_SHARED) at `kv` ...
 *   pc_memory_register(pc, kv, kv_bytes, fd, 0);
 */
PC_API int pc_memory_alloc(struct pc *pc, size_t bytes, void **ret_memory);
PC_API int pc_memory_alloc_within(
	struct pc *pc, size_t bytes, unsigned timeout_ms, void **ret_memory);
PC_API int pc_memory_register(struct pc *pc, void *base, size_t bytes, int memfd, uint64_t offset);
/*
 * Ends the registration of the range that starts at `base`, an address that was given to
 * pc_memory_register() or returned by pc_memory_alloc(). Returns when the engine no longer touches
 * the range. Unmaps memory of pc_memory_alloc(). Errors: -ENOENT: no range starts there. -EBUSY: a
 * batch in flight names the range. Any thread.
 */
PC_API int pc_memory_release(struct pc *pc, void *base);

/* ---- pages --------------------------------------------------------------------------------- */

/*
 * Opens a channel for one thread. Without an engine the call succeeds and the channel waits for
 * one. Errors: -EBUSY, -ENOSPC or -EMFILE with the engine's text: the engine has no more channels.
 * -EMFILE: this process has no room for two more file descriptors. -ETIMEDOUT: no reply within 10
 * s. None of these errors ends the session for other channels.
 */
PC_API int pc_channel_open(struct pc *pc, struct pc_channel **ret_channel);
/* The same with a time limit of its own, for a call with a deadline that has no channel yet. */
PC_API int pc_channel_open_within(
	struct pc *pc, unsigned timeout_ms, struct pc_channel **ret_channel);
/*
 * Closes a channel. Its batches end first and their results are written; no batch of the channel
 * may be used afterwards. Waits for READs into registered memory as other calls do. NULL is
 * allowed. Called by the thread that uses the channel.
 */
PC_API void pc_channel_close(struct pc_channel *channel);

/*
 * Sets the namespace of the channel's next calls; it replaces the session's
 * (pc_options.name_space). NULL restores the session's. Batches already submitted keep theirs. The
 * cost is one short hash, so one channel may serve many namespaces. -EINVAL: `channel` is NULL.
 *
 *   pc_channel_name_space(ch, "llama-70b/bf16/rank 3");
 */
PC_API int pc_channel_name_space(struct pc_channel *channel, const char *name_space);

/* One contiguous range of the caller's memory, part of a page. */
struct pc_segment {
	void *base;
	size_t bytes; /* length of the range, >= 1 */
};
/* True if a segment has a byte of registered GPU memory; pc_error() tells which. Any thread. */
PC_API bool pc_memory_gpu(struct pc *pc, const struct pc_segment *segments, size_t count);

/*
 * A page: the bytes of one key, 1 B to 64 MiB. set gathers them from the segments, get scatters
 * them to the segments, both in order.
 */
struct pc_page {
	const void *key; /* key of the page: any bytes, 1 to 1024 of them */
	size_t key_bytes;
	const struct pc_segment *segments;
	unsigned segment_count; /* number of segments, 1 to 1024; exists and remove ignore both */
};

/*
 * Batches of 0 to 65,536 pages. Each page gets one result, in order. The caller keeps all arrays,
 * keys and segments until the call returns. Return 0; -EINVAL for a NULL argument or a count out of
 * range; -ENOMEM. After an error the results are not written.
 *
 *   get     reads the page into the segments. After any result except PC_HIT the content of the
 *           segments is undefined. The stored page must have exactly the length of all segments
 *           together.
 *   set     stores the page in this host's pools and enters it in the directory. A page that is in
 *           the memory of a host already is not copied again: PC_HIT, once its holder's page head
 *           has been read during the call, so the page was there. Its bytes are not compared;
 *           PC_INVALID: it has another length, and is left as it is. If the holder has lost the
 *           page, does not answer, or has it on disk only, the page is stored. It replaces a page
 *           of another length on this host; one on a host that was not asked stays, and a get
 *           finds the one of its own length. After PC_HIT every host can read the page until it
 *           is evicted or removed; one that this host is cut off from can some seconds after both
 *           are connected again.
 *   exists  tells whether a page can be found. This is a hint: a later get may miss. The channel
 *           remembers the location, so a get that follows needs no second look-up. exists trusts
 *           a remembered location for one second; set checks it in any case. A page that exists
 *           or set finds counts as used for its holder's eviction; the channel reports it at most
 *           once a second per page.
 *   remove  removes the page from every host that can be reached. PC_HIT: one had it. PC_MISS:
 *           none had. PC_UNREACHABLE: a host left meanwhile. PC_TIMEOUT: a host has not answered
 *           yet. A host that is away or cut off now, or that crashes soon after and has the page on
 *           its disk, may bring it back: what must never come back is cleared, see
 *           pc_clear_cluster(). A set after it stores the page anew.
 */
PC_API int pc_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);
/*
 * A get of pages whose length is not known: the segments of each are room for it, which it fills
 * from the start. PC_HIT: ret_bytes[i] is the length of page i. PC_LONGER: the page is longer, and
 * ret_bytes[i] is its length; a room of 1 byte asks for it. Else it is 0. What is in the room
 * behind a page is undefined. A page that fills its room costs what it costs pc_get(). Of a shorter
 * one of another host the head is READ, too, and then the page again if it has no CRC, or if its
 * room was READ in several pieces.
 *
 *   uint64_t bytes;
 *   pc_get_sized(ch, &page, 1, 1000, &result, &bytes);    PC_HIT: `memory` has `bytes` bytes
 */
PC_API int pc_get_sized(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results, uint64_t *ret_bytes);
PC_API int pc_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);
PC_API int pc_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);
PC_API int pc_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);
#define PC_HOLDERS_MAX 64u

/* A host that has pages of the keys of a match. */
struct pc_holder {
	/* of its engine: the lower 8 hexadecimal digits of "incarnation" in a report's "members" */
	uint32_t ref;
	bool here;              /* it is this host */
	unsigned prefix;        /* number of leading keys of which it has every page */
	unsigned pages;         /* number of keys of which it has the page */
	unsigned pages_on_disk; /* those of `pages` that it would read from its disk */
};

struct pc_match {
	unsigned prefix;      /* number of leading keys of which some host has the page */
	unsigned unknown;     /* keys of which an owner could not be asked: others may have more */
	unsigned holders;     /* number of elements of `holder` */
	unsigned holders_all; /* hosts that have pages; more than `holders`: the best are listed */
	struct pc_holder holder[PC_HOLDERS_MAX]; /* the longest prefix first, then most pages */
};

/*
 * For routers: which hosts have the pages of 0 to 65,536 keys, such as those of a prompt in order.
 * The channel's namespace, arguments and deadline as in pc_exists(). The directory is read, no page
 * is: a hint, as that of exists. A page is stored once, by the host that had it first, so the pages
 * of a prompt may be spread, and only hosts that have the first one have a prefix. Up to 8 hosts of
 * a key are known. Nothing is taken from the channel's cache or counted as used. Data-parallel
 * ranks of a host share its pages: a holder is a host.
 *
 * Returns 0 and fills *ret_match, the caller's, and the result of each key, as of pc_exists(), in
 * ret_results; that may be NULL. -EINVAL: the arguments or a key are wrong. -ENOMEM. Without an
 * engine, or after the deadline, keys are unknown.
 *
 *   struct pc_match match;
 *   pc_match(ch, pages, 4096, 100, &match, NULL);
 *   if (match.holders)
 *           ... match.holder[0].ref has match.holder[0].prefix pages ...
 */
PC_API int pc_match(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, struct pc_match *ret_match, enum pc_result *ret_results);
/*
 * Brings pages that are stored elsewhere into the memory of this host, without waiting for them: a
 * get that comes later finds them here. Pages as in pc_exists(): their segments are not used. Pages
 * of other hosts' memory are copied, beside the READs of clients; pages on this host's disk are
 * read into its pools, and pages on another host's disk into the memory there, if there is room.
 * Copies make room as sets do, and at most an eighth of the pools waits to be copied.
 *
 * Results: PC_HIT: the page is here, is being brought here, or is on another host's disk. PC_FULL:
 * too many wait, or the key was removed a few seconds ago: try again later; or four hosts have the
 * page. Others as of pc_exists(). Returns as pc_exists() does, as soon as the locations are known.
 * A get of another channel may know the page at its old place, and reads it from there.
 *
 *   pc_prefetch(ch, pages, 256, 100, results);    ... and, when they are needed: pc_get()
 */
PC_API int pc_prefetch(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);
/*
 * Has the engine of this host not evict pages of its memory for that many seconds, at most a day;
 * a later pc_pin() may prolong it, pc_unpin() ends it. Pages can still be removed or cleared. Pins
 * take engine.pinned_percent of the pools at most, and of a quota; they end with the engine.
 *
 * Results: PC_HIT; PC_MISS: the page is not in the memory of this host, see pc_prefetch(); PC_FULL:
 * too much is pinned, or its group has a `ttl_s`. Others as of pc_exists(). Returns as pc_exists()
 * does.
 *
 *   pc_pin(ch, pages, 256, 3600, 100, results);           the system prompt of all users
 */
#define PC_PIN_MAX_S 86400u
PC_API int pc_pin(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned seconds, unsigned timeout_ms, enum pc_result *ret_results);
PC_API int pc_unpin(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);
/*
 * A hint for the sets that the channel submits from now on. true: their pages follow others of a
 * prompt that are not all stored, so no host can use them at present. They are stored, and evicted
 * before other pages. false, the default: no page before them is known to be missing.
 */
PC_API void pc_channel_gap(struct pc_channel *channel, bool gap);
/*
 * A hint for the pc_exists() that the channel submits from now on. true: they look up the head of a
 * prompt whose next pages are stored then. Its use is reported 20 times a second and page, so that
 * a pool that fills within seconds keeps it. false, the default: once a second.
 */
PC_API void pc_channel_head(struct pc_channel *channel, bool head);

/*
 * Removes what this host has of the namespaces of a group, whatever process or rank has stored it:
 * the pages in memory, those on disk and those that are being written there. NULL: all pages of
 * this host. Other hosts keep theirs. When the call has returned 0, no host reads a page that was
 * stored on this host before it; what was on its disk may be back after a crash. A set at the same
 * time has no order with it. Groups with the same 24 bits of their hash count as one.
 *
 * *ret_pages: number of keys whose pages were removed; NULL is allowed. Errors: -ETIMEDOUT: the
 * engine goes on. -ENOTCONN, -ENOMEM, -EINVAL.
 *
 *   pc_channel_name_space(ch, "llama-70b||rank 3");       ... sets ...
 *   pc_clear(ch, "llama-70b", 60000, NULL);               of all ranks
 */
PC_API int pc_clear(
	struct pc_channel *channel, const char *group, unsigned timeout_ms, uint64_t *ret_pages);

/*
 * From here on no host of the cluster finds a page of the group that was stored before, also after
 * a crash, and also one that is down now: it learns of the clear before it serves clients again.
 * One that is cut off, but runs, is not counted, and its own clients find old pages until it can be
 * reached. NULL: all groups. Their memory is used again in the seconds after the call. A batch at
 * the same time has no order with it.
 *
 * Returns 0: all hosts of the cluster have taken it. *ret_hosts: how many; NULL is allowed. Errors:
 * -EHOSTUNREACH: some have not in time, and take it when they can be reached; until then their own
 * clients may find old pages. -ETIMEDOUT, -ENOTCONN, -ENOMEM, -EINVAL.
 *
 *   pc_clear_cluster(ch, "llama-70b", 60000, NULL);
 */
PC_API int pc_clear_cluster(
	struct pc_channel *channel, const char *group, unsigned timeout_ms, unsigned *ret_hosts);

/*
 * Limits on this host of the groups in which the session's channels work. -1: as it is; 0: none.
 * `quota_bytes`: page memory that the pages of a group take at most; above it, the group's own
 * oldest pages are evicted, and no others. `ttl_s`: how long pages stay after they were stored,
 * seconds; they go to no disk and no other host. It ends pins, and their pages with them. A set
 * that finds the page does not prolong it.
 *
 * Each channel sends them with its next batch, and again to the next engine. The last value that
 * any client sends holds for all clients, and the engine logs it. The engine refuses limits if
 * engine.clients_clear is no, or if engine.quotas or engine.ttls set others and the process does
 * not administer the engine; its log and peercachectl health say so. Any thread. -EINVAL: less
 * than -1.
 *
 *   pc_limits(pc, 40ll << 30, 3600);
 */
PC_API int pc_limits(struct pc *pc, int64_t quota_bytes, int64_t ttl_s);

/*
 * The same calls, without waiting for the pages. The batch uses the page array, its keys, its
 * segments and the arrays of its results until it is done; the caller must not change or free them
 * earlier. A channel may have several batches in flight. pc_submit_set() copies a page's payload
 * before it returns if a slot is free. Batches make progress only inside pc_poll() and pc_wait() of
 * any batch of the channel, and inside other calls on the channel. Errors as above; after an error
 * there is no batch.
 *
 *   struct pc_batch *batch;
 *   pc_submit_get(ch, pages, 128, 1000, results, &batch);
 *   ... other work ...
 *   pc_wait(batch);                                       results are valid, the batch is freed
 */
PC_API int pc_submit_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch);
PC_API int pc_submit_get_sized(struct pc_channel *channel, const struct pc_page *pages,
	unsigned count, unsigned timeout_ms, enum pc_result *results, uint64_t *bytes,
	struct pc_batch **ret_batch);
PC_API int pc_submit_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch);
PC_API int pc_submit_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch);
PC_API int pc_submit_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch);
PC_API int pc_submit_prefetch(struct pc_channel *channel, const struct pc_page *pages,
	unsigned count, unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch);
/*
 * Makes progress without waiting. Returns true when the batch is done: its results are valid, and
 * this call has freed it.
 */
PC_API bool pc_poll(struct pc_batch *batch);
/*
 * A descriptor for poll(), epoll and event loops, for a thread that does not want to wait in a
 * call. It is readable while a batch of the channel is done or can move on: an answer has come, a
 * deadline has passed, the engine is gone. It may be readable without a reason, and is not while no
 * batch is in flight. Each time that it is, call pc_poll() for the batches. Any thread may wait for
 * it; it is not to be read, written or closed. pc_channel_close() makes it readable and closes it;
 * a dup() of it stays readable.
 *
 * Returns the descriptor, the same one each time, or a negative errno: -EMFILE or -ENFILE: no more
 * descriptors (it needs two, and one in the process). -ENOTCONN: in a child of fork(). Channels
 * without one pay nothing for it.
 *
 *   struct pollfd p = {.fd = pc_channel_fd(ch), .events = POLLIN};
 *   pc_submit_get(ch, pages, 128, 1000, results, &batch);
 *   while (!pc_poll(batch))
 *           poll(&p, 1, -1);                              ... or serve other descriptors, too
 */
PC_API int pc_channel_fd(struct pc_channel *channel);
/*
 * Waits until the batch is done, which is at its deadline or earlier except as described at the top
 * of this file, and frees it.
 */
PC_API void pc_wait(struct pc_batch *batch);

/* ---- why a key is found or not --------------------------------------------------------------- */

/*
 * Tells as JSON why a key is found or not, in the namespace of the channel: its hash, its owners,
 * what each of them answers about the key, the page head at each place that they name, where the
 * engine of this host has the page, and what a get that has nothing cached returns, by the rule
 * that it follows. Each owner is asked, also after one has the key; nothing is taken from the
 * channel's cache, nothing is removed, brought into memory or counted as used. The caller frees
 * *ret_json with free(). A tool for people (peercachectl explain): it allocates memory and takes
 * milliseconds. Returns by its deadline, as other calls do.
 * Errors: -EINVAL: the arguments are wrong. -ENOTCONN: no engine. -ENOMEM.
 *
 *   "hash"       the page key, 32 hexadecimal digits
 *   "slot"       of the key, 0 to 65,535; each slot of the directory has its owners
 *   "epoch", "members"   of this host's map; "disk": this host has a disk in service
 *   "here"       where this host has the page, by its engine: "memory", "disk", "nowhere" or
 *                "not known"
 *   "here_why"   if it is in memory: "stored" by a client of this host, "prefetched",
 *                "kept for others": it is a storage host, "drained": from a host that was, or "hot":
 *                clients of several hosts use it again and again
 *   "result"     of a get: "hit", "miss", "stale" or "unreachable"
 *   "cause"      why it is unreachable, else "": "no map" (the owners are not known),
 *                "holder", "owner" (one cannot be READ), "suspect owner" (it is not asked, as
 *                another one has answered), "this engine" (it does not answer)
 *   "owners"     [{"ref" (of the engine; its report and those of others name it), "here",
 *                "answer": "present", "absent" or "unreachable", "why" (text),
 *                "buckets" [first, second], "read" (how many of them), "asked" (by that get),
 *                "entries" [{"ref", "holder" (index in "holders")}]}]
 *   "holders"    [{"here", "ref", "rail", "unit", "generation",
 *                "state": "page", "on disk", "evicted", "other key", "dead" or "unreachable",
 *                "why" (text),
 *                "head_generation", "bytes", "crc" (hexadecimal), "proven" (the CRC is the
 *                page's)}]
 */
PC_API int pc_explain(struct pc_channel *channel, const void *key, size_t key_bytes,
	unsigned timeout_ms, char **ret_json);

/* ---- what happened ------------------------------------------------------------------------- */

/*
 * Counters of one channel since it was opened. pc_channel_counts() is called by the channel's
 * thread.
 */
struct pc_counts {
	uint64_t hits_local;  /* get: pages copied from this host's pools */
	uint64_t hits_remote; /* get: pages read from another host's pools */
	uint64_t misses, stale, unreachable, timeouts;
	uint64_t sets; /* set: pages that were stored */
	/* set: pages that were not copied because their key was stored already */
	uint64_t sets_already;
	uint64_t lookups;        /* keys looked up in the directory */
	uint64_t lookups_cached; /* keys whose location came from the channel's cache instead */
	uint64_t bytes_read, bytes_written;
	uint64_t bytes_staged; /* bytes of bytes_read that went through staging */
	/* READs of a page that were repeated on another rail after a rail failed */
	uint64_t reissued;
};
PC_API void pc_channel_counts(const struct pc_channel *channel, struct pc_counts *ret_counts);

/* What came of comparing pages with their CRC32C (pc_options.verify). Rules of pc_counts. */
struct pc_verify_counts {
	uint64_t verified; /* pages of hits_local and hits_remote with the CRC32C of their head */
	uint64_t corrupt;  /* READs and copies of pages with another CRC32C: no hits */
};
PC_API void pc_channel_verify_counts(
	const struct pc_channel *channel, struct pc_verify_counts *ret_counts);

#ifdef __cplusplus
}
#endif

#endif
