/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory as the other rooms use it: finds the owners of a key, publishes and removes this
 * engine's entries there, deletes keys at all members, and serves the requests of other engines.
 * Lookups are not here: a client reads the owner's shard with a one-sided READ.
 *
 * Control plane's thread only. No call waits: messages are collected in one batch per owner and
 * sent at the end of each turn of the event loop. Times are CLOCK_MONOTONIC.
 */
#ifndef CONTROL_DIRECTORY_H
#define CONTROL_DIRECTORY_H

#include "engine/abi/epoch.h"
#include "engine/abi/message.pb-c.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages.h"
#include "engine/disk/disk.h"
#include "numa/huge.h"

struct control;
struct directory;
struct member;
struct rpc_link;

/* ---- results --------------------------------------------------------------------------------- */

/*
 * Result of a directory call. Called exactly once, from directory_flush(), never from inside the
 * call that requested it, with one exception: if memory is exhausted, OP_NO_SPACE is passed at
 * once. It may call any function of this header.
 *
 * OP_HIT: at least one owner has stored the entry, so the page can be found, and every other owner
 * has answered or is suspect (suspect.h). Without the answer of a suspect owner the set is partial
 * until that owner has answered too. OP_PEER_DOWN: no owner has stored the entry, and those that
 * have not answered are suspect or dead. OP_NO_SPACE: every owner has answered and none had room
 * for the entry. OP_TIMEOUT: the deadline passed first; messages already queued or in flight are
 * not withdrawn, but above a limit those that wait for one owner are made up for later.
 * OP_CANCELLED: directory_close() was called.
 */
typedef void (*directory_done)(void *context, uint64_t cookie, enum op_status status);

/* What waits for a result, and until when. The callee copies it. */
struct waiter {
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; passes before the result: OP_TIMEOUT */
	directory_done done;
	void *context;
	uint64_t cookie;
};

/* ---- entries of this engine: called by clients/ and pages/ ----------------------------------- */

/*
 * Publishes "this node has `key` at `at`", whose ref is not used, to every owner; this node's own
 * shard is written at once. If an owner dies meanwhile, its successor in the new map takes its
 * place. `waiter` NULL: none.
 */
void directory_publish(struct control *control, const struct page_key *key,
	const struct location *at, const struct waiter *waiter);
/*
 * Removes our own entry from its owners; the ref of `at` is not used. Each remove is sent again
 * until the owner acknowledges it or dies.
 */
void directory_remove(
	struct control *control, const struct page_key *key, const struct location *at);
/* The same of a page that is evicted: the owners keep its ghost. */
void directory_evicted(struct control *control, const struct page_key *key,
	const struct location *at, enum evicted from);
/*
 * The page is on disk and not in memory: its owners get the entry of the page on disk, in place of
 * the one that they may have. False: not all of them do, so the caller removes that one.
 */
bool directory_on_disk(struct control *control, const struct disk_page *page);
/* Pages may be on disk that owners do not know: compares and publishes all entries, paced. */
void directory_disk_opened(struct control *control);
/* True while many removes are queued that no client waits for. */
bool directory_busy(const struct control *control);
/*
 * A reader found the entry `at` to be wrong: its owners remove exactly that
 * entry; an entry with a newer generation stays.
 */
void directory_stale(
	struct control *control, const struct page_key *key, const struct location *at);
/*
 * Deletes a key: every member of the map that holds `key`, this one included, drops its page, and
 * its entries. OP_HIT: one had it; OP_MISS: none had. OP_PEER_DOWN: a member has left meanwhile.
 * A member that the message could not be sent to while the waiter waits does not get it.
 */
void directory_forget(
	struct control *control, const struct page_key *key, const struct waiter *waiter);
/*
 * The page at `place` on node `ref` was read by a client of this engine: informs that node, whose
 * eviction keeps visited pages longer.
 */
void directory_touch(struct control *control, uint32_t ref, uint32_t place);
#define REPORTS_MAX 16u /* pages reported to one holder in one Touch; further ones are dropped */
/* A client of this host has read this page of engine `ref` with another CRC than its head says. */
void directory_report(struct control *control, uint32_t ref, const struct page_report *report);

/* ---- owners and members: called by members/ and conns/ --------------------------------------- */

/*
 * The member has left the map. Publishes queued for it move to its successor at the next
 * directory_map_changed().
 */
void directory_member_gone(struct control *control, uint16_t peer, uint32_t ref);
/*
 * Member `ref` had removed us from its map and dropped our entries: publishes again every entry
 * that it owns.
 */
void directory_forgotten(struct control *control, uint32_t ref);
/*
 * The link has closed: batches sent over it and not acknowledged are sent again over the next one.
 */
void directory_link_down(struct control *control, uint16_t peer, const struct rpc_link *link);
/* True if a request to the member waits too long for its acknowledgement. */
bool directory_overdue(const struct control *control, uint16_t peer);
void directory_link_up(struct control *control, uint16_t peer);
/* The member has answered a probe, and none waits for too long (`served`), or one does. */
void directory_probed(struct control *control, uint16_t peer, bool served);
/* The map has changed. */
void directory_map_changed(struct control *control);

/*
 * READs of member `ref` hang, although READs of others complete; or they do so no longer. Called by
 * conns/rail_health.c.
 */
void directory_unread(struct control *control, uint16_t peer, uint32_t ref, bool unread);

/* ---- what clears of the cluster have raised: epochs.c ---------------------------------------- */

/*
 * Epochs of groups (abi/epoch.h). This engine merges what others send, shows it to its clients, and
 * keeps it for the next engine, in memory under a keeper and in the directories of disk.paths.
 *
 * The door of an engine that has seeds, and pages of before or a disk, is shut until it has merged
 * what one member knows, or finds that it is alone, or has looked for others for
 * cluster.dead_after_ms: until then no client is accepted, and nothing is published. An engine
 * without pages needs none: it finds pages of others only after it has heard one. `opened` is
 * called when it opens, if it was shut.
 */
int epochs_open(struct control *control, void (*opened)(struct control *control));
void epochs_close(struct control *control);

/*
 * Raises the epoch of a group, or of EPOCH_ALL, and tells all links. Returns it; 0: it cannot be
 * raised any more. If EPOCHS_MAX groups have one, *group is EPOCH_ALL then.
 */
uint64_t epoch_raise(struct control *control, uint32_t *group);
/* The same to at least `epoch`. Returns the epoch that holds now. */
uint64_t epoch_raise_to(struct control *control, uint32_t group, uint64_t epoch);
/* Counts changes; epoch_past() may have changed its answers when it has another value. */
uint32_t epochs_version(const struct control *control);
/* True if the page key is of an epoch that has ended: no client asks for it any more. */
bool epoch_past(const struct control *control, const struct page_key *key);
/* True while the last change is not in all directories of disk.paths yet. */
bool epochs_storing(const struct control *control);

/* A Hello carries all epochs. */
void epochs_say(const struct control *control, Pc__Hello *hello);
void epochs_heard(struct control *control, const Pc__Hello *hello);

/* ---- what observe/ shows --------------------------------------------------------------------- */

/* State of the directory as this engine sees it. The loop's thread. */
struct directory_counts {
	bool moving;      /* entries move to new owners after a change of the map */
	unsigned behind;  /* owners that have not taken all entries of this engine yet */
	unsigned suspect; /* owners for which publishes do not wait */
	uint32_t partial; /* sets that were answered before all their owners had the entry */
	uint64_t walk_position, walk_end; /* slots of all owners: published, and all */
	uint64_t sweep_left;              /* buckets of the shard to search for dead members */
};
void directory_counts(const struct control *control, struct directory_counts *ret);

/* What this engine sends to the member with that peer number. The loop's thread. */
struct directory_owner {
	enum suspect_why why;
	unsigned queued;      /* requests that were not sent yet */
	unsigned in_flight;   /* batches without an acknowledgement */
	unsigned background;  /* requests that no client waits for */
	bool behind;          /* publishes were skipped; a walk makes up for them */
	uint64_t unserved_ms; /* how long the oldest request waits for its answer; 0: none waits */
	int64_t served_ms;    /* since the last acknowledgement; -1: there was none */
};
void directory_owner(const struct control *control, uint16_t peer, struct directory_owner *ret);

/* ---- life: called by the root ---------------------------------------------------------------- */

/*
 * Runs at every heartbeat: begins the periodic comparison, and closes the link of an owner that has
 * acknowledged nothing for twice cluster.dead_after_ms, so that the owner is dialled again.
 */
void directory_tick(struct control *control, uint64_t now_ns);

int directory_open(struct control *control);
void directory_close(struct control *control);
/* Called at the end of each turn of the control plane: sends the batches that it has collected. */
void directory_flush(struct control *control);

/* ---- messages of other engines; false: the message breaks a rule, and the link is closed ----- */

bool directory_serve_publish(
	struct control *control, struct rpc_link *link, const Pc__Publish *publish);
bool directory_serve_remove(
	struct control *control, struct rpc_link *link, const Pc__Remove *remove);
bool directory_serve_ack(struct control *control, struct rpc_link *link, const Pc__Ack *ack);
bool directory_serve_touch(struct control *control, struct rpc_link *link, const Pc__Touch *touch);
bool directory_serve_digest_ask(
	struct control *control, struct rpc_link *link, const Pc__DigestAsk *ask);
bool directory_serve_digest(
	struct control *control, struct rpc_link *link, const Pc__Digest *answer);
bool directory_serve_entries_ask(
	struct control *control, struct rpc_link *link, const Pc__EntriesAsk *ask);
bool directory_serve_entries(
	struct control *control, struct rpc_link *link, const Pc__Entries *answer);
bool epochs_serve(struct control *control, struct rpc_link *link, const Pc__Epochs *message);
bool directory_serve_forget(
	struct control *control, struct rpc_link *link, const Pc__Forget *forget);

#endif
