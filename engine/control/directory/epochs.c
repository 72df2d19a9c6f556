/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epochs, as directory.h says. An engine that has learned something new sends all that it knows
 * over all its links, so a change reaches every member, and a Hello brings it to one that was away.
 * The higher of two values holds, so the order in which they come does not matter.
 *
 * The files in disk.paths are for an engine that was started without a keeper and meets no
 * member. A helper thread writes them: the last change may be lost with the power.
 */
#include "engine/control/directory/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/base/control.h"
#include "engine/control/base/work.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"

#define DOOR_LOOK_US 5000
#define RESEND_US 50000
#define EPOCHS_FILE "peercache-disk.epochs"
#define EPOCHS_HEADING "PeerCache epochs 1\n"

struct epochs {
	struct work work; /* of the helper thread; first, as epochs_work() gets it */
	struct control *control;
	struct huge memory; /* of `kept`, for the next engine */
	struct epochs_shared *kept;
	/* ---- the door ---- */
	struct net_timer *look;
	uint64_t since_ns; /* when this engine could first hear another one */
	bool heard;
	void (*opened)(struct control *control);
	/* ---- other engines ---- */
	struct net_timer *resend; /* a link had no room for what was raised */
	/* ---- files ---- */
	struct works *works;        /* NULL: no disk.paths */
	struct epochs_shared image; /* that the helper thread writes */
	bool storing, again;        /* it does; there was a change meanwhile */
	unsigned paths;
	const char *path[DISK_PATHS_MAX]; /* in `text` */
	char text[DISK_TEXT_BYTES];
};

/* ---- the table ------------------------------------------------------------------------------- */

static uint32_t epoch_find(const struct epochs_shared *shared, uint32_t group)
{
	return group == EPOCH_ALL ? 0 : epochs_find(shared, epochs_count(shared), group);
}

/* 0: it was never raised. */
static uint64_t epoch_of(const struct epochs *e, uint32_t group)
{
	uint32_t i = epoch_find(e->kept, group);

	return i < e->kept->count ? e->kept->epoch[i] : 0;
}

static void epoch_store(struct epochs_shared *shared, uint32_t i, uint32_t group, uint64_t epoch)
{
	shm_store64(&shared->epoch[i], epoch);
	shm_store(&shared->group[i], group);
	if (i >= shared->count)
		shm_store(&shared->count, i + 1);
	shm_store_release(&shared->version, shared->version + 1);
}

/* Returns whether it is news. */
static bool epoch_set(struct epochs *e, uint32_t group, uint64_t epoch)
{
	uint32_t i = epoch_find(e->kept, group);

	if ((group > EPOCH_GROUP_MAX && group != EPOCH_ALL) || epoch >> 32 >= EPOCH_COUNTER_MAX)
		return false;
	if (i > EPOCHS_MAX) { /* another member may have other groups: all of them have this one */
		if (epoch <= epoch_of(e, EPOCH_ALL))
			return false;
		log_warn(
			"%u groups of namespaces were cleared before: a clear of another member is one of all pages of the cluster",
			EPOCHS_MAX);
		return epoch_set(e, EPOCH_ALL, epoch);
	}
	if (i < e->kept->count && epoch <= e->kept->epoch[i])
		return false;
	epoch_store(e->kept, i, group, epoch);
	epoch_store(&e->control->status->epochs, i, group, epoch);
	return true;
}

uint32_t epochs_version(const struct control *control)
{
	return control->status->epochs.version;
}

bool epoch_past(const struct control *control, const struct page_key *key)
{
	struct epoch epoch = epoch_load(&control->status->epochs, epoch_group(key));

	return (key->word[0] & PAGE_EPOCH_0) != epoch_bits(&epoch);
}

/* ---- files in disk.paths --------------------------------------------------------------------- */

/* Returns 0 or -errno. */
static int epochs_write(const struct epochs_shared *image, const char *directory)
{
	char path[PATH_MAX], temporary[PATH_MAX];
	FILE *file;
	int rc = 0;

	snprintf(path, sizeof(path), "%s/" EPOCHS_FILE, directory);
	snprintf(temporary, sizeof(temporary), "%s/" EPOCHS_FILE ".new", directory);
	file = fopen(temporary, "we");
	if (!file)
		return -errno;
	fputs(EPOCHS_HEADING, file);
	for (uint32_t i = 0; i < image->count; i++)
		fprintf(file, "%" PRIx32 " %" PRIx64 "\n", image->group[i], image->epoch[i]);
	if (fflush(file) || fsync(fileno(file)) < 0)
		rc = -errno;
	if (fclose(file) && !rc)
		rc = -errno;
	if (!rc && rename(temporary, path) < 0)
		rc = -errno;
	return rc;
}

static void epochs_work(struct work *work, unsigned part)
{
	const struct epochs *e = (const struct epochs *)work;
	int rc = epochs_write(&e->image, e->path[part]);

	if (rc < 0)
		log_error(
			"%s/" EPOCHS_FILE
			": %s; after a restart without a keeper that meets no other engine, pages that were cleared may be found on this disk",
			e->path[part], strerror(-rc));
}

static void epochs_store(struct epochs *e)
{
	e->again = e->storing;
	if (!e->works || e->storing)
		return;
	e->image = *e->kept;
	e->storing = true;
	work_submit(e->works, 0, &e->work);
}

static void epochs_stored(struct work *work)
{
	struct epochs *e = (struct epochs *)work;

	e->storing = false;
	if (e->again)
		epochs_store(e);
}

bool epochs_storing(const struct control *control)
{
	return control->epochs->storing;
}

/* What is not as epochs_write() writes it is left out. */
static void epochs_read(struct epochs *e, const char *directory)
{
	char path[PATH_MAX], line[64];
	uint32_t group;
	uint64_t epoch;
	FILE *file;

	snprintf(path, sizeof(path), "%s/" EPOCHS_FILE, directory);
	file = fopen(path, "re");
	if (!file) {
		if (errno != ENOENT)
			log_error("%s: %s; pages that were cleared may be found on this disk", path,
				strerror(errno));
		return;
	}
	if (fgets(line, sizeof(line), file) && strcmp(line, EPOCHS_HEADING) == 0)
		while (fgets(line, sizeof(line), file))
			if (sscanf(line, "%" SCNx32 " %" SCNx64, &group, &epoch) == 2)
				(void)epoch_set(e, group, epoch);
	fclose(file);
}

static int epochs_files_open(struct epochs *e)
{
	e->paths = tier_directories(e->control->settings, e->text, e->path);
	if (!e->paths)
		return 0;
	for (unsigned i = 0; i < e->paths; i++)
		epochs_read(e, e->path[i]);
	e->work = (struct work){.parts = e->paths, .run = epochs_work, .done = epochs_stored};
	return works_open(e->control->base,
		&(struct works_options){.name = "pc-epochs", .queues = 1, .threads = 1}, &e->works);
}

/* ---- other engines --------------------------------------------------------------------------- */

/* Of the elements that were ever raised. */
static uint32_t epochs_known(const struct epochs *e)
{
	return e->kept->count > 1 || e->kept->epoch[0] ? e->kept->count : 0;
}

static void epochs_send(void *context)
{
	struct epochs *e = context;
	const struct member_table *table = members_table(e->control);
	Pc__Epochs body = PC__EPOCHS__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_EPOCHS, &body);
	bool all = true;

	body.n_groups = body.n_epochs = epochs_known(e);
	body.groups = e->kept->group;
	body.epochs = e->kept->epoch;
	for (unsigned i = 0; i < table->contacts; i++) {
		struct rpc_link *link = member_link_of(table->contact[i]->member);

		if (link && !link->closed)
			all &= rpc_send(link, &message);
	}
	if (all)
		net_timer_stop(e->resend);
	else
		(void)net_timer_set(e->resend, RESEND_US);
}

static void epochs_changed(struct epochs *e)
{
	epochs_store(e);
	if (e->control->members)
		epochs_send(e);
}

uint64_t epoch_raise(struct control *control, uint32_t *group)
{
	struct epochs *e = control->epochs;
	uint64_t epoch;

	if (epoch_find(e->kept, *group) > EPOCHS_MAX) {
		log_warn(
			"%u groups of namespaces were cleared before: this clear is one of all pages of the cluster",
			EPOCHS_MAX);
		*group = EPOCH_ALL;
	}
	epoch = ((epoch_of(e, *group) >> 32) + 1) << 32 | control->ref;
	if (!epoch_set(e, *group, epoch))
		return 0;
	epochs_changed(e);
	return epoch;
}

uint64_t epoch_raise_to(struct control *control, uint32_t group, uint64_t epoch)
{
	struct epochs *e = control->epochs;

	if (epoch_set(e, group, epoch))
		epochs_changed(e);
	return epoch_of(e, epoch_find(e->kept, group) > EPOCHS_MAX ? EPOCH_ALL : group);
}

void epochs_say(const struct control *control, Pc__Hello *hello)
{
	const struct epochs *e = control->epochs;

	if (!e)
		return;
	hello->n_epoch_groups = hello->n_epochs = epochs_known(e);
	hello->epoch_groups = e->kept->group;
	hello->epochs = e->kept->epoch;
}

static void epochs_merge(struct epochs *e, const uint32_t *group, size_t groups,
	const uint64_t *epoch, size_t epochs)
{
	bool changed = false;

	for (size_t i = 0; i < groups && i < epochs && i <= EPOCHS_MAX; i++)
		changed |= epoch_set(e, group[i], epoch[i]);
	if (changed)
		epochs_changed(e);
}

/* After the merge: the sender of the Hello lacks an epoch, which may be younger than its Hello. */
static bool epochs_lacks(const struct epochs *e, const Pc__Hello *hello)
{
	uint64_t more = 0;

	for (uint32_t i = 0; i < epochs_known(e); i++)
		more += e->kept->epoch[i];
	for (size_t i = 0; i < hello->n_epochs; i++)
		more -= hello->epochs[i];
	return more != 0;
}

static void door_look(void *context);

void epochs_heard(struct control *control, const Pc__Hello *hello)
{
	struct epochs *e = control->epochs;

	if (!e)
		return;
	epochs_merge(e, hello->epoch_groups, hello->n_epoch_groups, hello->epochs, hello->n_epochs);
	if (epochs_lacks(e, hello))
		epochs_send(e);
	e->heard = true;
	door_look(e);
}

bool epochs_serve(struct control *control, struct rpc_link *link, const Pc__Epochs *m)
{
	(void)link;
	epochs_merge(control->epochs, m->groups, m->n_groups, m->epochs, m->n_epochs);
	return true;
}

/* ---- the door -------------------------------------------------------------------------------- */

static void door_look(void *context)
{
	struct epochs *e = context;
	struct control *control = e->control;
	uint64_t now_ns = net_now();

	if (!control->door_shut || !control->directory)
		return;
	if (control->exporting) /* it has not dialled yet */
		e->since_ns = now_ns;
	if (!e->heard && now_ns - e->since_ns < control_dead_ns(control) &&
		(member_seeking(control) || member_count(control) > 1 || control->exporting))
		return;
	control->door_shut = false;
	net_timer_stop(e->look);
	e->opened(control);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* What an engine before has left in the memory, or nothing. */
static void epochs_adopt(struct epochs *e, bool adopted)
{
	struct epochs_shared *was = &e->image; /* no thread writes it yet */

	if (adopted) {
		*was = *e->kept;
		memset(e->kept, 0, sizeof(*e->kept));
	}
	e->kept->count = e->control->status->epochs.count = 1;
	e->kept->group[0] = e->control->status->epochs.group[0] = EPOCH_ALL;
	for (uint32_t i = 0; i < was->count && i <= EPOCHS_MAX; i++)
		(void)epoch_set(e, was->group[i], was->epoch[i]);
}

int epochs_open(struct control *control, void (*opened)(struct control *control))
{
	const struct settings *s = control->settings;
	struct epochs *e = calloc(1, sizeof(*e));
	struct warm_counts warm;
	bool adopted;
	int rc;

	if (!e)
		return -ENOMEM;
	e->control = control;
	e->opened = opened;
	e->since_ns = net_now();
	control->epochs = e;
	rc = warm_epochs_open(control, sizeof(*e->kept), &e->memory, &adopted);
	if (rc < 0)
		goto fail;
	e->kept = e->memory.base;
	epochs_adopt(e, adopted);
	rc = epochs_files_open(e);
	if (rc < 0)
		goto fail;
	warm_counts(control, &warm);
	control->door_shut =
		(warm.adopted || e->paths) &&
		(s->cluster_seeds[0] || s->cluster_seeds_file[0] || s->cluster_etcd[0]);
	e->look = net_timer_new(control->base, true, door_look, e);
	e->resend = net_timer_new(control->base, false, epochs_send, e);
	rc = e->look && e->resend ? 0 : -ENOMEM;
	if (rc == 0 && control->door_shut)
		rc = net_timer_set(e->look, DOOR_LOOK_US);
	if (rc == 0)
		return 0;
fail:
	epochs_close(control);
	return rc;
}

void epochs_close(struct control *control)
{
	struct epochs *e = control->epochs;

	if (!e)
		return;
	works_close(e->works);
	net_timer_free(e->look);
	net_timer_free(e->resend);
	huge_close(&e->memory);
	free(e);
	control->epochs = NULL;
}
