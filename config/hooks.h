/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test hooks: settings of the section [test], and words of soft.model, that make NICs fail, pages
 * wrong or clocks stop. Only a build with -Dtest_hooks=true has them; the engine that serves has
 * neither their code nor their names. tests/README.md lists them.
 */
#ifndef CONFIG_HOOKS_H
#define CONFIG_HOOKS_H

/*
 * `condition` in a build with test hooks, expected to be false. In other builds false, and
 * `condition` is not compiled, so it may use members that only a build with hooks has.
 */
#ifdef TEST_HOOKS
#define TEST_HOOK(condition) __builtin_expect(!!(condition), 0)
#else
#define TEST_HOOK(condition) 0
#endif

/* what a build without test hooks answers to a setting that it does not have */
#define NO_TEST_HOOKS                                                                              \
	"this engine was built without test hooks; use a build of meson setup -Dtest_hooks=true"

#endif
