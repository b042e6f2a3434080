(* Numbers of OCaml as numbers of the theories, and back. Trusted, like all of this folder. *)

open Checker

let rec positive i =
  if i = 1 then XH else if i land 1 = 0 then XO (positive (i lsr 1)) else XI (positive (i lsr 1))

let rec int_of_positive = function
  | XH -> 1 | XO p -> 2 * int_of_positive p | XI p -> 2 * int_of_positive p + 1

let int_of = function N0 -> 0 | Npos p -> int_of_positive p

(* Equal numbers share one value: a saving, nothing else. *)
let shared : (int, n) Hashtbl.t = Hashtbl.create 1024

let number i =
  match Hashtbl.find_opt shared i with
  | Some v -> v
  | None ->
    let v = if i = 0 then N0 else Npos (positive i) in
    Hashtbl.add shared i v; v
