/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl directory: the engine's part of the directory, and which owners do not have its
 * entries yet. One thread.
 */
#include "tools/common.h"
#include "tools/ctl.h"

/* ---- what the report shows ------------------------------------------------------------------- */

/* The members that lack entries of this engine or do not answer. The caller frees it. */
static json_object *owners_late(json_object *report)
{
	json_object *members = json_get(report, "members"), *late = json_object_new_array();

	for (size_t i = 0; i < json_length(members); i++) {
		json_object *member = json_at(members, i);

		if (json_flag(member, "behind") || *json_text(member, "suspect"))
			json_object_array_add(late, json_object_get(member));
	}
	return late;
}

/*
 * True if nothing is left to send to an owner. An owner may still lack entries: one whose shard is
 * full refuses them.
 */
static bool settled(json_object *report, json_object *late)
{
	json_object *figures = json_get(report, "figures");

	return !json_number(json_get(report, "directory"), "sweep_left") &&
	       !json_number(figures, "directory_moving") &&
	       !json_number(figures, "directory_owners_behind") &&
	       !json_number(figures, "directory_owners_suspect") &&
	       !json_number(figures, "directory_sets_partial") && !json_length(late);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_walk(json_object *directory)
{
	int64_t end = json_number(directory, "walk_end");
	int64_t sweep_left = json_number(directory, "sweep_left");

	if (end)
		printf("walk: publishes this engine's pages to new owners, %.1f %% done\n",
			100.0 * (double)json_number(directory, "walk_position") / (double)end);
	else
		printf("walk: none\n");
	if (sweep_left)
		printf("sweep: %lld buckets to search for entries of dead members\n",
			(long long)sweep_left);
}

static void print_owner(json_object *owner)
{
	const char *suspect = json_text(owner, "suspect");
	char name[PLAIN_BYTES];

	printf("  %s: %s%s%s%s, %lld requests queued, %lld batches unacknowledged",
		json_plain(owner, "name", name), json_flag(owner, "behind") ? "behind" : "",
		json_flag(owner, "behind") && *suspect ? ", " : "", *suspect ? "suspect: " : "",
		suspect, (long long)json_number(owner, "queued"),
		(long long)json_number(owner, "unacknowledged"));
	if (json_number(owner, "unserved_ms"))
		printf(", oldest waits %.1f s", (double)json_number(owner, "unserved_ms") / 1000);
	printf("\n");
}

static void print_directory(json_object *report, json_object *late)
{
	json_object *figures = json_get(report, "figures");
	json_object *directory = json_get(report, "directory");
	char name[PLAIN_BYTES];

	printf("%s\n", json_plain(report, "name", name));
	printf("shard: %lld of %lld entries (%.1f %%), %lld dropped for lack of room\n",
		(long long)json_number(figures, "directory_entries"),
		(long long)json_number(figures, "directory_capacity_entries"),
		100 * json_real(json_get(report, "recent"), "directory_used_ratio"),
		(long long)json_number(directory, "dropped"));
	printf("pages of this engine: %lld\n", (long long)json_number(figures, "pages"));
	print_walk(directory);
	printf("partial sets: %lld\n", (long long)json_number(figures, "directory_sets_partial"));
	printf("owners: %lld behind, %lld suspect\n",
		(long long)json_number(figures, "directory_owners_behind"),
		(long long)json_number(figures, "directory_owners_suspect"));
	for (size_t i = 0; i < json_length(late); i++)
		print_owner(json_at(late, i));
	printf("%s\n", settled(report, late)
			       ? "settled: nothing is left to send to an owner"
			       : "not settled: readers may miss some pages of this engine");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void print_directory_json(json_object *report, json_object *late)
{
	static const char *const names[] = {"name", "figures", "directory"};
	json_object *o = json_object_new_object();

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		json_object_object_add(o, names[i], json_object_get(json_get(report, names[i])));
	json_object_object_add(o, "settled", json_object_new_boolean(settled(report, late)));
	json_object_object_add(o, "owners_late", json_object_get(late));
	print_json(o, stdout);
}

int ctl_directory(struct ctl_run *ctl)
{
	json_object *report, *late;
	int status;

	ctl_deadline(ctl);
	report = ctl_report(ctl);
	if (!report)
		return ctl_no_answer(ctl, pc_error());
	late = owners_late(report);
	if (ctl->json)
		print_directory_json(report, late);
	else
		print_directory(report, late);
	status = settled(report, late) ? 0 : 1;
	json_object_put(late);
	json_object_put(report);
	return status;
}
