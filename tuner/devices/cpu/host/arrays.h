// The kernel's arrays, each alone in its pages between unreadable ones.
#pragma once
#include <stddef.h>

// Where an array lies in its pages. At the end, the first byte after it faults (16-byte alignment leaves up to 15 bytes
// of slack); at the start, the first byte before it does. Slack holds NaN patterns and must hold them afterwards.
enum class Placement { at_start, at_end };

struct Array {
  const char* name = nullptr;
  const char* source = "";        // file with its contents, "" for NaN patterns
  const char* destination = "";   // file that gets them after a verified launch, "" for none
  size_t bytes = 0;
  bool writable = false;
  bool takes_finite = false;      // before a launch it may hold finite numbers in place of NaN
  bool shared = false;            // with processes that are forked when it has been placed
  bool is_workspace = false;      // scratch: zero at first, then what `keep` found
  char* data = nullptr;      // what the kernel gets
  char* pages = nullptr;
  char* kept = nullptr;
  char* first = nullptr;     // what it holds before a launch that is timed, where that is not NaN or finite bytes
  int results[2] = {-1, -1};  // open files: DESTINATION.0 and .1
  size_t page_bytes = 0;

  void place(Placement placement);
  void fill(unsigned char finite) const;               // from `source`, a workspace from what was kept; else such bytes
  void keep();                                         // the contents, for the next time it is placed and filled
  void protect() const;                                // inputs become read-only
  bool is_as_kept() const;                             // whether it holds what was kept
  void open_results();                                 // makes both files of `destination`, while files may be made
  void save(int number) const;                         // to the first or the second of them
  void load(const char* path);                         // other contents, from a file, where it lies already
  void reset(unsigned char finite) const;              // a written array as before a launch, without a file
  bool overrun_is_reported() const;                    // on stderr, where slack was written
  bool fault_is_reported(const char* address) const;   // on stderr, where it lies in this array or just outside
  void unmap();
};
