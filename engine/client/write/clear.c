/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_clear() and pc_clear_cluster(): a batch of their own kind with one "page" for each host, so
 * the deadline and a lost engine are handled as for every other batch. Channel thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/limits.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/client/page/batch.h"
#include "engine/client/call/call.h"
#include "engine/client/constants.h"
#include "engine/client/error.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/session.h"
#include "engine/client/write/write.h"

/* hosts that one call asks at a time */
#define CLEAR_HOSTS 64u
/* this host, and NODES_MAX members */
#define HOSTS_MAX (NODES_MAX + 1u)
/* longest time between two calls of pc_cleared_call */
#define CLEAR_TOLD_NS 1000000000ull

/* One host, and its answer. */
struct clear_host {
	uint32_t ref;         /* of its engine; 0: this host */
	enum ctl_cleared why; /* with another result than PC_HIT */
	uint64_t pages;       /* keys whose pages were removed */
	bool here;            /* the engine of this host */
	bool asked;
	bool told;
};

/* What pc_clear() and pc_clear_cluster() ask. */
struct clear {
	struct page_key group; /* bits of the group */
	bool all;              /* all pages, of whatever group */
	uint32_t asked;        /* hosts that have not answered yet */
	struct clear_host *host;
};

void clear_step(struct pc_batch *b)
{
	struct clear *clear = b->clear;
	uint64_t rest_ns = b->deadline_ns - b->channel->now_ns;
	uint32_t i;

	while (clear->asked < CLEAR_HOSTS && (i = page_unqueue(b, PAGE_REMOVE)) != CLIENT_NONE) {
		struct ctl_op op = {.kind = CTL_CLEAR,
			.count = clear->all,
			.key = clear->group,
			.ref = clear->host[i].ref,
			/* so that the engine's own answer comes in time */
			.deadline_ns = b->deadline_ns - rest_ns / 16};

		if (!ctl_ask(b, i, REQUEST_CLEAR, &op))
			return;
		clear->host[i].asked = true;
		clear->asked++;
	}
}

void clear_answer(struct pc_batch *b, uint32_t i, const struct ctl_done *done, uint32_t status)
{
	struct clear_host *host = &b->clear->host[i];

	b->clear->asked--;
	host->pages = (uint64_t)done->generation << 32 | done->place;
	host->why = done->length < CLEARED_REASONS ? done->length : CLEARED_SILENT;
	if (status != OP_HIT && host->why == CLEARED_ALL)
		host->why = CLEARED_SILENT;
	if (status == OP_HIT)
		page_done(b, i, PC_HIT);
	else if (status == OP_CANCELLED)
		page_done(b, i, PC_GONE);
	else
		page_done(b, i, PC_UNREACHABLE);
}

static const char *clear_text(const struct clear_host *host, enum pc_result result)
{
	static const char *const reasons[CLEARED_REASONS] = {
		[CLEARED_VOLATILE] =
			"the pages are removed, but the disk did not record it: they may come back after a restart; see peercachectl health",
		[CLEARED_BUSY] = "too many requests wait, or no memory; ask again",
		[CLEARED_LATE] =
			"the engine has not removed all pages yet, and goes on; ask again, or raise the time-out",
		[CLEARED_SILENT] = "its engine does not answer",
		[CLEARED_GONE] = "it has left the cluster meanwhile",
		[CLEARED_AWAY] = "a host that is away may come back with pages"};

	switch (result) {
	case PC_HIT: return NULL;
	case PC_TIMEOUT:
		if (host->here)
			return reasons[CLEARED_LATE];
		return host->asked
			       ? "the engine of this host has not told in time"
			       : "it was not asked before the time-out: others did not answer; raise the time-out";
	case PC_UNREACHABLE: return reasons[host->why];
	default: return "no engine is attached";
	}
}

/* Who is told about hosts that have answered. */
struct clear_listener {
	pc_cleared_call told;
	void *context;
	uint64_t told_ns;
	uint32_t left, failed;
};

static void clear_tell(struct clear_listener *to, struct clear_host *host, uint32_t hosts,
	const enum pc_result *result)
{
	uint64_t now_ns = clock_monotonic_ns();

	for (uint32_t i = 0; i < hosts; i++) {
		struct pc_cleared cleared = {.engine = host[i].ref, .pages = host[i].pages};

		if (host[i].told || result[i] == PC_PENDING)
			continue;
		host[i].told = true;
		cleared.failed = clear_text(&host[i], result[i]);
		to->failed += cleared.failed != NULL;
		to->left--;
		to->told_ns = now_ns;
		if (to->told)
			to->told(to->context, &cleared, to->left);
	}
	if (to->told && to->left && now_ns - to->told_ns >= CLEAR_TOLD_NS) {
		to->told_ns = now_ns;
		to->told(to->context, NULL, to->left);
	}
}

/* Waits for the answers of the hosts. False: no memory. */
static bool clear_wait(struct pc_channel *ch, struct clear *clear, uint32_t hosts,
	uint64_t deadline_ns, enum pc_result *result, struct clear_listener *to)
{
	struct pc_batch *b = batch_make(ch, BATCH_CLEAR, hosts, result, deadline_ns);

	if (!b)
		return false;
	b->clear = clear;
	memset(b->work, 0, hosts * sizeof(b->work[0]));
	for (uint32_t i = 0; i < hosts; i++) {
		result[i] = PC_PENDING;
		page_queue(b, i, PAGE_REMOVE);
	}
	while (b->left) {
		wait_for(ch, b, clock_monotonic_ns() + CLEAR_TOLD_NS / 4);
		clear_tell(to, clear->host, hosts, result);
		if (!ch->session)
			break;
	}
	batch_free(b);
	return true;
}

/* 0, or -EINVAL. */
static int clear_group(struct clear *clear, const char *group)
{
	struct key_space space;

	clear->all = !group;
	if (group && strstr(group, KEY_GROUP_END))
		return error_set(-EINVAL,
			"%s is no group: a group is the part of a namespace in front of its first ||",
			group);
	if (group) {
		key_name_space(group, &space);
		clear->group = space.group;
	}
	return 0;
}

static uint64_t clear_deadline_ns(unsigned timeout_ms)
{
	return clock_monotonic_ns() +
	       (timeout_ms ? timeout_ms : PC_TIMEOUT_MS_DEFAULT) * 1000000ull;
}

static int clear_error(enum ctl_cleared why, const char *text)
{
	switch (why) {
	case CLEARED_BUSY: return error_set(-ENOMEM, "%s", text);
	default: return error_set(-EIO, "%s", text);
	}
}

int pc_clear(struct pc_channel *ch, const char *group, unsigned timeout_ms, uint64_t *ret_pages)
{
	uint64_t deadline_ns = clear_deadline_ns(timeout_ms);
	struct clear_host host = {.here = true};
	struct clear clear = {.host = &host};
	struct clear_listener nobody = {.left = 1};
	enum pc_result result = PC_GONE;

	error_clear();
	if (!ch)
		return error_set(-EINVAL, "pc_clear() needs a channel");
	if (clear_group(&clear, group))
		return -EINVAL;
	if (channel_ready(ch, deadline_ns) &&
		!clear_wait(ch, &clear, 1, deadline_ns, &result, &nobody))
		return error_set(-ENOMEM, "out of memory to remove the pages");
	switch (result) {
	case PC_HIT:
		if (ret_pages)
			*ret_pages = host.pages;
		return 0;
	case PC_TIMEOUT: return error_set(-ETIMEDOUT, "%s", clear_text(&host, result));
	case PC_UNREACHABLE: return clear_error(host.why, clear_text(&host, result));
	default: return error_set(-ENOTCONN, "%s", clear_text(&host, result));
	}
}

/*
 * This host, which need not be on its own map yet, and the other members of the map. Returns their
 * number, at most HOSTS_MAX; 0: the map is empty.
 */
static uint32_t clear_hosts(struct pc_channel *ch, struct clear_host *ret)
{
	const struct map_shared *map = &ch->session->status->map;
	uint32_t peers = shm_load_acquire(&map->peers), n = 1, members = 0;

	ret[0] = (struct clear_host){.ref = ch->session->ref, .here = true};
	for (uint32_t i = 0; i < peers && i < NODES_MAX; i++) {
		struct map_member m = map_member_unpack(shm_load_acquire64(&map->member[i]));

		if (!map_member_sane(&m))
			continue;
		members++;
		if (m.ref != ch->session->ref)
			ret[n++] = (struct clear_host){.ref = m.ref};
	}
	return members ? n : 0;
}

/* Whether a host has become a member that was not asked. */
static bool clear_joined(struct pc_channel *ch, const struct clear_host *host, uint32_t hosts)
{
	struct clear_host *now = malloc(HOSTS_MAX * sizeof(*now));
	uint32_t n = now ? clear_hosts(ch, now) : 0, same = 0;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < hosts; j++)
			same += now[i].ref == host[j].ref;
	free(now);
	return !n || same != n;
}

int pc_clear_cluster(struct pc_channel *ch, const char *group, unsigned timeout_ms,
	pc_cleared_call told, void *context)
{
	uint64_t deadline_ns = clear_deadline_ns(timeout_ms);
	struct clear_host *host;
	enum pc_result *result;
	struct clear clear = {.asked = 0};
	struct clear_listener to = {
		.told = told, .context = context, .told_ns = clock_monotonic_ns()};
	uint32_t hosts;
	int rc = 0;

	error_clear();
	if (!ch)
		return error_set(-EINVAL, "pc_clear_cluster() needs a channel");
	if (clear_group(&clear, group))
		return -EINVAL;
	if (!channel_ready(ch, deadline_ns))
		return error_set(-ENOTCONN, "no engine is attached");
	host = clear.host = malloc(HOSTS_MAX * (sizeof(*host) + sizeof(*result)));
	if (!host)
		return error_set(-ENOMEM, "out of memory to remove the pages");
	result = (enum pc_result *)(host + HOSTS_MAX);
	hosts = to.left = clear_hosts(ch, host);
	if (!hosts)
		rc = error_set(-ENOTCONN, "the engine of this host is no member of a cluster yet");
	else if (!clear_wait(ch, &clear, hosts, deadline_ns, result, &to))
		rc = error_set(-ENOMEM, "out of memory to remove the pages");
	else if (to.failed || to.left)
		rc = error_set(-EHOSTUNREACH, "%u of %u hosts are not known to be empty",
			to.failed + to.left, hosts);
	else if (host->why == CLEARED_AWAY || clear_joined(ch, host, hosts))
		rc = error_set(-EHOSTUNREACH,
			"a host that is away, or has come back meanwhile, may have pages: ask again when all hosts are members");
	free(host);
	return rc;
}
