(* Device programs. Trusted: that [program] hands [Checker.decide_device] the rows of the file, and
   that the schedule in the file is read by the reader of schedules.

   {"format": "latecomer-device/1", "ranks", "chunks", "sets", "slots",
    "rows": for each rank [[action, peer, chunk, slot], ...], "schedule": a file of a collective} *)

open Checker
open Fields
open Numbers

let format = Json.String "latecomer-device/1"

let is_device = function
  | Json.Object l -> List.assoc_opt "format" l = Some format
  | _ -> false

(* What a negative or unknown action is makes no row fit: the table has no such number. *)
let action = function
  | Json.Int 0 -> Puts
  | Json.Int 1 -> Adds
  | Json.Int 2 -> Copies
  | _ -> malformed "an action must be 0, 1 or 2"

(* An index that is negative is as far out of range as one that is too large. *)
let index = function
  | Json.Int i -> number (if i < 0 then max_int else i)
  | _ -> malformed "an index must be an integer"

let row = function
  | Json.List [does; peer; chunk; slot] ->
    { row_does = action does; row_peer = index peer; row_chunk = index chunk; row_slot = index slot }
  | _ -> malformed "a row must be [action, peer, chunk, slot]"

(* Kernels find the set of an operation by the last bits of its number. *)
let sets v =
  let sets = in_range "sets" 1 65536 v in
  if sets land (sets - 1) <> 0 then malformed "sets must be a power of two";
  sets

let program v =
  let field = fields "the file"
      ["format"; "ranks"; "chunks"; "sets"; "slots"; "rows"; "schedule"] v in
  let size name least most = number (in_range name least most (required name (field name))) in
  let ranks = size "ranks" 1 16384 in
  let rows = List.map (fun v -> List.map row (list "the rows of a rank" v))
      (list "rows" (required "rows" (field "rows"))) in
  if List.length rows <> int_of ranks then malformed "rows must have a list for each rank";
  { device_ranks = ranks;
    device_chunks = size "chunks" 1 1048576;
    device_sets = number (sets (required "sets" (field "sets")));
    device_slots = size "slots" 0 16777216;
    device_rows = rows }

let schedule_of v =
  let field = fields "the file"
      ["format"; "ranks"; "chunks"; "sets"; "slots"; "rows"; "schedule"] v in
  required "schedule" (field "schedule")

let verdict = function Some true -> "\"proved\"" | Some false -> "\"refuted\"" | None -> "\"unknown\""

(* [read] reads schedules. *)
let judge read v =
  let schedule = read (schedule_of v) in
  let right = Checker.accepted (Checker.check schedule) in
  let said = decide_device (program v) schedule in
  let all = right && device_accepted said in
  Printf.printf
    "{\"accepted\":%b,\"properties\":{\"schedule\":%s,\"slots_match\":%s,\"deadlock_free\":%s,\
     \"race_free\":%s,\"all_heard\":%s,\"same_sums\":%s}}\n"
    all (verdict (Some right)) (verdict (Some said.slots_do_match))
    (verdict said.is_deadlock_free) (verdict said.is_race_free) (verdict said.all_are_heard)
    (verdict said.has_same_sums);
  flush stdout;
  if all then 0 else 1
