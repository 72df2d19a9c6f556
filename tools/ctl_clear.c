/* SPDX-License-Identifier: Apache-2.0 */
/* peercachectl clear: of this host, or of all hosts of the cluster. One thread. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "config/address_text.h"
#include "config/limits.h"
#include "tools/common.h"
#include "tools/ctl.h"

#define WAITS_NAMED 4u /* hosts that a line of progress names */

struct clear_run {
	const struct ctl_run *ctl;
	json_object *report; /* of the engine of this host, before the clear */
	json_object *hosts;  /* one object for each host that has answered */
	uint64_t removed;
	unsigned failed;
};

static uint32_t member_engine(json_object *member)
{
	return (uint32_t)strtoull(json_text(member, "incarnation"), NULL, 16);
}

/* "NAME (ADDRESS:PORT)". `member` NULL: it joined after the report was made. */
static void host_text(json_object *member, uint32_t engine, char *ret, size_t bytes)
{
	char name[PLAIN_BYTES], address[PLAIN_BYTES], place[ADDRESS_TEXT_BYTES];

	if (!member) {
		snprintf(ret, bytes, "engine %08" PRIx32, engine);
		return;
	}
	snprintf(ret, bytes, "%s (%s)", json_plain(member, "name", name),
		address_text(json_plain(member, "address", address),
			(unsigned)json_number(member, "port"), place));
}

/* `failed` NULL: the host is empty. */
static void host_add(struct clear_run *run, const char *host, uint64_t pages, const char *failed)
{
	json_object *o = json_object_new_object();

	add_text(o, "host", host);
	add_number(o, "removed", pages);
	if (failed)
		add_text(o, "failed", failed);
	json_object_array_add(run->hosts, o);
}

static void host_print(struct clear_run *run, json_object *member, uint32_t engine, uint64_t pages,
	const char *failed)
{
	char text[320];

	host_text(member, engine, text, sizeof(text));
	run->removed += pages;
	run->failed += failed != NULL;
	if (!run->ctl->json) {
		if (failed)
			printf("%s: not known to be empty: %s\n", text, failed);
		else
			printf("%s: removed the pages of %" PRIu64 " keys\n", text, pages);
		fflush(stdout);
		return;
	}
	host_add(run, text, pages, failed);
}

static json_object *member_of(const struct clear_run *run, uint32_t engine, bool mark)
{
	json_object *up = json_get(run->report, "members");

	for (size_t i = 0; i < json_length(up); i++) {
		json_object *member = json_at(up, i);

		if (member_engine(member) != engine)
			continue;
		if (mark)
			json_object_object_add(member, "told", json_object_new_boolean(true));
		return member;
	}
	return NULL;
}

/* Tells which hosts have not answered. */
static void progress_print(const struct clear_run *run, unsigned left)
{
	json_object *up = json_get(run->report, "members");
	unsigned named = 0;

	fprintf(stderr, "waiting for %u host(s):", left);
	for (size_t i = 0; i < json_length(up) && named < WAITS_NAMED && named < left; i++) {
		char name[PLAIN_BYTES];

		if (!json_get(json_at(up, i), "told"))
			fprintf(stderr, "%s %s", named++ ? "," : "",
				json_plain(json_at(up, i), "name", name));
	}
	fputs(named < left ? ", ...\n" : "\n", stderr);
}

static void on_cleared(void *context, const struct pc_cleared *host, unsigned left)
{
	struct clear_run *run = context;

	if (host)
		host_print(run, member_of(run, host->engine, true), host->engine, host->pages,
			host->failed);
	else if (!run->ctl->json)
		progress_print(run, left);
}

/* Members that died are not asked. What a keeper or a disk keeps of them comes back with them. */
static void down_print(struct clear_run *run)
{
	json_object *down = json_get(run->report, "members_down");
	int64_t unlisted = json_number(run->report, "members_down_unlisted");
	char failed[128], age[WORDS_BYTES];

	for (size_t i = 0; i < json_length(down); i++) {
		json_object *member = json_at(down, i);

		snprintf(failed, sizeof(failed), "down for %s: clear it when it is back, or never",
			text_duration((uint64_t)json_number(member, "state_ms"), age));
		host_print(run, member, 0, 0, failed);
	}
	if (unlisted <= 0)
		return;
	unlisted = unlisted < NODES_MAX ? unlisted : NODES_MAX;
	run->failed += (unsigned)unlisted;
	if (!run->ctl->json) {
		printf("%" PRId64 " more hosts: not known to be empty: down\n", unlisted);
		return;
	}
	for (int64_t i = 0; i < unlisted; i++)
		host_add(run, "not listed", 0, "down");
}

/* What the exit status means. */
static void verdict_print(const struct clear_run *run, int rc)
{
	if (run->failed)
		fprintf(stderr, "not all hosts are known to be empty: %u are not\n", run->failed);
	else if (rc)
		fprintf(stderr, "%s\n", pc_error());
	else
		fputs("all hosts are empty\n", stderr);
}

static int clear_cluster(struct ctl_run *ctl)
{
	struct clear_run run = {.ctl = ctl, .hosts = json_object_new_array()};
	json_object *o;
	int rc;

	run.report = engine_report(ctl->pc);
	if (!run.report)
		die("%s", pc_error());
	rc = pc_clear_cluster(ctl->channel, ctl->group, ctl->restart_ms, on_cleared, &run);
	if (rc && rc != -EHOSTUNREACH)
		die("%s", pc_error());
	down_print(&run);
	if (ctl->json) {
		o = json_object_new_object();
		add_number(o, "removed", run.removed);
		add_number(o, "failed", run.failed);
		json_object_object_add(o, "hosts", run.hosts);
		print_json(o, stdout);
	} else {
		json_object_put(run.hosts);
		verdict_print(&run, rc);
	}
	json_object_put(run.report);
	return rc || run.failed ? 1 : 0;
}

int ctl_clear(struct ctl_run *ctl)
{
	uint64_t pages = 0;

	if (ctl->cluster)
		return clear_cluster(ctl);
	if (pc_clear(ctl->channel, ctl->group, ctl->restart_ms, &pages))
		die("%s", pc_error());
	if (ctl->json) {
		json_object *o = json_object_new_object();

		add_number(o, "removed", pages);
		print_json(o, stdout);
	} else {
		printf("removed the pages of %" PRIu64 " keys%s%s from this host\n", pages,
			ctl->group ? " of namespace " : "", ctl->group ? ctl->group : "");
	}
	return 0;
}
